/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host path of a service: its configuration, and a socket for each kind of address.
 */
#include <stdio.h>

#include "service.h"
#include "storage/base/log.h"

/* The socket of one address: beside a unix socket; without a file, under a random name, for all
 * that come by TCP. What cannot be had is said and done without. */
static void listen_locally(struct qr_service *service, const struct qr_address *address)
{
    char beside[sizeof(address->path) + sizeof(QR_LOCAL_SUFFIX)];
    char *name = service->local_path;
    const uint8_t *id = service->instance;
    struct qr_error e = {0};

    if (!address->is_unix && name[0])
        return;
    if (address->is_unix)
        snprintf(beside, sizeof(beside), "%s" QR_LOCAL_SUFFIX, address->path);
    else
        snprintf(name, sizeof(service->local_path), "@quire-%02x%02x%02x%02x%02x%02x%02x%02x",
                 id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]);
    if (!qr_local_listen(service->local, address->is_unix ? beside : name, &e))
        return;
    QR_LOG(QR_LOG_WARN, "local.off", QR_LOG_STR("address", address->text),
           QR_LOG_STR("why", e.text));
    if (!address->is_unix)
        name[0] = 0;
}

quire_status qr_service_offer_local(struct qr_service *service,
                                    const struct qr_address *addresses, uint32_t count,
                                    struct qr_error *e)
{
    const struct qr_config *c = service->config;
    const uint64_t ring_bytes = qr_config_number(c, QR_OPTION_local_ring);
    const struct qr_local_config config = {
        .methods = qr_service_methods,
        .method_count = qr_service_method_count,
        .service = service,
        .identify = qr_service_identify,
        .release = qr_service_release,
        .threads = (uint32_t)qr_config_number(c, QR_OPTION_server_threads),
        .clients_max = (uint32_t)qr_config_number(c, QR_OPTION_local_clients),
        .up_bytes = ring_bytes,
        .down_bytes = ring_bytes / 2,
        .memory_bytes = qr_config_number(c, QR_OPTION_local_memory),
        .message_bytes_max = qr_config_number(c, QR_OPTION_max_message_bytes),
        .stall_ms = (uint32_t)qr_config_number(c, QR_OPTION_stall_timeout),
        .handshake_ms = (uint32_t)qr_config_number(c, QR_OPTION_handshake_timeout),
    };

    if (!qr_config_number(c, QR_OPTION_local))
        return QUIRE_OK;
    const quire_status status = qr_local_create(&config, &service->local, e);
    if (status)
        return status;
    for (uint32_t i = 0; i < count; i++)
        listen_locally(service, &addresses[i]);
    return qr_local_start(service->local, e);
}
