/* SPDX-License-Identifier: Apache-2.0
 *
 * What test_server_kill knows of a session: what was acknowledged, what was
 * tried, and whether what a server has is one of the states that follow from it.
 */
#ifndef QR_TEST_SERVER_KILL_H
#define QR_TEST_SERVER_KILL_H

#include "client/quire.h"
#include "tests/test.h"

#define LAYERS 3u
#define HEADS 2u
#define DIM 64u
#define PAGE 16u
#define TOKENS_MAX 1024u
#define ROW (HEADS * DIM) /* elements of K or V of a token */

#define REQUIRE(condition, ...)                                                                \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            printf("not so: " #condition ": " __VA_ARGS__);                                    \
            printf("\n");                                                                      \
            fflush(stdout);                                                                    \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

enum exists { NO, MAYBE, YES };

/* One session name. owner: its thread, or main while no server runs. */
struct slot {
    char name[32];
    enum exists exists;
    bool sure;        /* it must be there after a kill */
    uint32_t length;  /* as the last answer said */
    uint32_t durable; /* a kill leaves at least this */
    uint32_t tried;   /* and at most this */
    uint32_t cut_to;  /* a cut that was not answered; UINT32_MAX: none */
    uint64_t epoch;   /* the last one that an opening gave */
    uint32_t salts[TOKENS_MAX];
    quire_session *session;
};

/* FP16 bits of a value, finite and never NaN; a function of all arguments. */
static inline void fill_row(uint16_t *out, uint32_t salt, uint32_t layer, uint32_t which,
                            uint32_t position)
{
    uint64_t x = salt * UINT64_C(0x9e3779b97f4a7c15) + layer * UINT64_C(0xbf58476d1ce4e5b9) +
                 which * UINT64_C(0x94d049bb133111eb) + position * UINT64_C(0xd6e8feb86659fd93);

    for (uint32_t c = 0; c < ROW; c++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        out[c] = (uint16_t)((x >> 48 & 0x83ffu) | (11 + (x >> 44 & 3)) << 10);
    }
}

static inline void slot_reset(struct slot *slot)
{
    slot->exists = NO;
    slot->sure = false;
    slot->length = slot->durable = slot->tried = 0;
    slot->cut_to = UINT32_MAX;
    slot->epoch = 0;
}

/* Compare [0, length) with the model. */
static inline quire_status slot_compare(const struct slot *slot, quire_session *session,
                                        uint32_t length)
{
    static _Thread_local uint16_t rows[2][LAYERS][TOKENS_MAX * ROW];
    void *key[LAYERS], *value[LAYERS];
    uint16_t expected[ROW];

    if (length == 0)
        return QUIRE_OK;
    for (uint32_t l = 0; l < LAYERS; l++) {
        key[l] = rows[0][l];
        value[l] = rows[1][l];
    }
    const struct quire_fetch fetch = {
        .tokens = length, .layers = LAYERS, .dtype = QUIRE_F16, .key = key, .value = value};
    const quire_status status = quire_fetch(session, &fetch);
    if (status != QUIRE_OK)
        return status;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t p = 0; p < length; p++) {
                fill_row(expected, slot->salts[p], l, which, p);
                REQUIRE(memcmp(expected, rows[which][l] + p * ROW, sizeof(expected)) == 0,
                        "%s: layer %u, %s at %u of %u is wrong", slot->name, l,
                        which ? "value" : "key", p, length);
            }
    return QUIRE_OK;
}

/* Is what a new server says of this session one of the states that may be? */
static inline void slot_judge(const struct slot *slot, const struct quire_session_info *info)
{
    const uint32_t length = (uint32_t)info->length;
    const bool in_range = length >= slot->durable && length <= slot->tried;

    REQUIRE(slot->exists != NO, "%s was dropped, and is back with %u tokens", slot->name,
            length);
    REQUIRE(in_range || length == slot->cut_to,
            "%s has %u tokens; acknowledged %u, tried %u, cut to %d", slot->name, length,
            slot->durable, slot->tried, (int)slot->cut_to);
    REQUIRE(info->longest <= slot->tried, "%s: a lane has %u tokens, tried %u", slot->name,
            (uint32_t)info->longest, slot->tried);
    REQUIRE(info->missing_pages == 0, "%s has %u missing pages", slot->name,
            (uint32_t)info->missing_pages);
}

#endif
