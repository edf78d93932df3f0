/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs upgrade steps one after the other, and notes each in the index.
 */
#include "disk_upgrade.h"

#include "storage/base/log.h"

const struct qr_disk_upgrade qr_disk_upgrades[] = {{0, NULL, NULL}}; /* C has no empty array */
const size_t qr_disk_upgrade_count = 0;

static quire_status note(struct qr_disk_index *index, uint32_t version, struct qr_error *e)
{
    const struct qr_disk_key key = qr_disk_key_version();
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;

    qr_disk_batch_put(&batch, &key, &version, sizeof(version));
    const quire_status status = qr_disk_index_write(index, &one, 1, e);
    qr_disk_batch_free(&batch);
    return status;
}

quire_status qr_disk_upgrade(struct qr_disk_index *index, const struct qr_disk_upgrade *steps,
                             size_t count, uint32_t from, uint32_t to, struct qr_error *e)
{
    uint32_t version = from;

    for (size_t i = 0; i < count && version < to; i++) {
        if (steps[i].from != version)
            continue;
        quire_status status = steps[i].run(index, e);
        if (status == QUIRE_OK)
            status = note(index, version + 1, e);
        if (status != QUIRE_OK)
            return status;
        version++;
        QR_LOG(QR_LOG_INFO, "disk.upgraded", QR_LOG_STR("what", steps[i].what),
               QR_LOG_U64("to", version));
    }
    if (version < to)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "a store of version %u: this Quire (version %u) cannot upgrade it: "
                            "start a Quire in between first",
                            from, to);
    return QUIRE_OK;
}
