/* SPDX-License-Identifier: Apache-2.0
 *
 * Findings and totals as text or as one JSON object, and the progress bar.
 */
#include "fsck.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PRINTED_MAX 100u /* of a kind, without --all */
#define DRAW_S 0.1

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static const char *bytes_text(char text[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    while (bytes >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(text, 32, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

/* ---- progress --------------------------------------------------------------------------- */

static void erase_bar(struct qr_fsck *f)
{
    if (f->bar)
        (void)fputs("\r\033[K", stderr);
    f->bar = false;
}

void qr_fsck_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    struct qr_fsck *f = arg;
    const double now = seconds();
    char done[32], total[32], speed[32];

    if (f->started == 0)
        f->started = now;
    if (!f->terminal || f->quiet || f->json || total_bytes == 0 || now - f->drawn < DRAW_S)
        return;
    f->drawn = now;
    f->bar = true;
    fprintf(stderr, "\r\033[Kchecking pages: %3.0f%%, %s of %s, %s a second",
            100.0 * (double)done_bytes / (double)total_bytes,
            bytes_text(done, (double)done_bytes), bytes_text(total, (double)total_bytes),
            bytes_text(speed, now > f->started ? (double)done_bytes / (now - f->started) : 0));
}

/* ---- findings --------------------------------------------------------------------------- */

static void print_line(struct qr_fsck *f, const struct qr_disk_finding *finding)
{
    const struct qr_disk_place *place = finding->place;

    erase_bar(f);
    fprintf(f->out, "%s: %s",
            qr_disk_finding_severity(finding->kind) == QR_DISK_BAD ? "bad" : "note",
            qr_disk_finding_what(finding->kind));
    if (place)
        fprintf(f->out, ": device %u, slab %u, slot %u (%u bytes at byte %" PRIu64 ")",
                place->device, place->region, place->slot, place->bytes, finding->offset);
    if (finding->session)
        fprintf(f->out, ": session '%s'", finding->session);
    if (finding->session && finding->end_token > finding->first_token)
        fprintf(f->out, " (namespace %u), lane %u, tokens %" PRIu64 " to %" PRIu64, finding->ns,
                finding->lane, finding->first_token, finding->end_token - 1);
    if (finding->text[0])
        fprintf(f->out, ": %s", finding->text);
    fputs(finding->dropped ? ": dropped\n" : "\n", f->out);
}

static void add_object(struct qr_fsck *f, const struct qr_disk_finding *finding)
{
    cJSON *o = cJSON_CreateObject();

    cJSON_AddStringToObject(o, "kind", qr_disk_finding_name(finding->kind));
    cJSON_AddStringToObject(
        o, "severity", qr_disk_finding_severity(finding->kind) == QR_DISK_BAD ? "bad" : "note");
    cJSON_AddStringToObject(o, "text", finding->text);
    cJSON_AddBoolToObject(o, "dropped", finding->dropped);
    if (finding->place) {
        cJSON *place = cJSON_AddObjectToObject(o, "place");
        cJSON_AddNumberToObject(place, "device", finding->place->device);
        cJSON_AddNumberToObject(place, "slab", finding->place->region);
        cJSON_AddNumberToObject(place, "slot", finding->place->slot);
        cJSON_AddNumberToObject(place, "bytes", finding->place->bytes);
        cJSON_AddNumberToObject(place, "offset", (double)finding->offset);
    }
    if (finding->session) {
        cJSON_AddStringToObject(o, "session", finding->session);
        cJSON_AddNumberToObject(o, "namespace", finding->ns);
    }
    if (finding->session && finding->end_token > finding->first_token) {
        cJSON_AddNumberToObject(o, "lane", finding->lane);
        cJSON_AddNumberToObject(o, "first_token", (double)finding->first_token);
        cJSON_AddNumberToObject(o, "tokens",
                                (double)(finding->end_token - finding->first_token));
    }
    cJSON_AddItemToArray(f->findings, o);
}

void qr_fsck_found(void *arg, const struct qr_disk_finding *finding)
{
    struct qr_fsck *f = arg;

    /* counted by now, this one included */
    if (!f->all && f->result.counts[finding->kind] > PRINTED_MAX)
        return;
    if (f->json)
        add_object(f, finding);
    else if (!f->quiet || qr_disk_finding_severity(finding->kind) == QR_DISK_BAD)
        print_line(f, finding);
}

/* ---- the end ---------------------------------------------------------------------------- */

static int exit_code(const struct qr_fsck *f, quire_status status)
{
    if (status == QUIRE_EUNAVAILABLE)
        return QR_FSCK_IN_USE;
    if (status != QUIRE_OK)
        return QR_FSCK_FAILED;
    return f->result.bad > 0 ? QR_FSCK_DAMAGE : QR_FSCK_SOUND;
}

static void print_totals(const struct qr_fsck *f)
{
    const struct qr_disk_check_result *r = &f->result;
    char bytes[32], verified[32];

    for (int kind = 0; kind < QR_DISK_FINDINGS; kind++) {
        if (!f->all && r->counts[kind] > PRINTED_MAX)
            fprintf(f->out, "... and %" PRIu64 " more: %s (--all lists them)\n",
                    r->counts[kind] - PRINTED_MAX, qr_disk_finding_what(kind));
    }
    fprintf(f->out, "%" PRIu64 " pages of %s", r->pages,
            bytes_text(bytes, (double)r->page_bytes));
    if (!f->check.quick)
        fprintf(f->out, ", %" PRIu64 " of %s read and right", r->verified,
                bytes_text(verified, (double)r->verified_bytes));
    fprintf(f->out,
            "; %" PRIu64 " sessions, %" PRIu64 " lanes, %" PRIu64
            " manifest entries; tail log: %" PRIu64 " records, %" PRIu64 " in use\n",
            r->sessions, r->lanes, r->blocks, r->tail_records, r->tail_live);
    if (r->bad == 0)
        fprintf(f->out, "sound\n");
    else if (f->check.repair)
        fprintf(f->out,
                "%" PRIu64 " findings; %" PRIu64 " index entries dropped, %" PRIu64
                " put right; run it again to see what is left\n",
                r->bad, r->dropped, r->counted);
    else
        fprintf(f->out, "%" PRIu64 " findings; --repair drops what cannot be proved right\n",
                r->bad);
}

static void print_object(struct qr_fsck *f, quire_status status, const struct qr_error *e)
{
    const struct qr_disk_check_result *r = &f->result;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"devices", r->devices},
                   {"pages", r->pages},
                   {"page_bytes", r->page_bytes},
                   {"verified", r->verified},
                   {"verified_bytes", r->verified_bytes},
                   {"free_slots", r->free_slots},
                   {"namespaces", r->namespaces},
                   {"models", r->models},
                   {"sessions", r->sessions},
                   {"lanes", r->lanes},
                   {"manifest_entries", r->blocks},
                   {"tail_segments", r->tail_segments},
                   {"tail_records", r->tail_records},
                   {"tail_records_in_use", r->tail_live},
                   {"bad", r->bad},
                   {"dropped", r->dropped},
                   {"put_right", r->counted}};
    cJSON *root = cJSON_CreateObject();
    char store[33];

    if (status != QUIRE_OK) {
        cJSON *error = cJSON_AddObjectToObject(root, "error");
        cJSON_AddStringToObject(error, "status", qr_status_name(status));
        cJSON_AddStringToObject(error, "text", e->text);
    }
    qr_disk_uuid_text(r->store, store);
    cJSON_AddStringToObject(root, "store", store);
    cJSON_AddNumberToObject(root, "version", r->version);
    cJSON_AddBoolToObject(root, "sound", status == QUIRE_OK && r->bad == 0);
    cJSON_AddBoolToObject(root, "pages_read", !f->check.quick);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        cJSON_AddNumberToObject(root, numbers[i].name, (double)numbers[i].value);
    cJSON *counts = cJSON_AddObjectToObject(root, "counts");
    for (int kind = 0; kind < QR_DISK_FINDINGS; kind++) {
        if (r->counts[kind] > 0)
            cJSON_AddNumberToObject(counts, qr_disk_finding_name(kind),
                                    (double)r->counts[kind]);
    }
    cJSON_AddItemToObject(root, "findings", f->findings);
    f->findings = NULL;
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    fprintf(f->out, "%s\n", text ? text : "{}");
    free(text);
}

int qr_fsck_conclude(struct qr_fsck *fsck, quire_status status, const struct qr_error *e)
{
    erase_bar(fsck);
    if (fsck->json)
        print_object(fsck, status, e);
    else if (status == QUIRE_OK && !fsck->quiet)
        print_totals(fsck);
    if (status != QUIRE_OK)
        fprintf(stderr, "quire fsck: %s\n", e->text);
    return exit_code(fsck, status);
}
