/* SPDX-License-Identifier: Apache-2.0
 *
 * From a key as a person wrote it to an option, with the nearest known key in the
 * message when there is none. Must not know values.
 */
#include "config.h"

#include <ctype.h>
#include <string.h>

#define KEY_MAX 64

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, remove, replace a character) between two keys; both shorter than KEY_MAX. */
static size_t distance(const char *a, const char *b)
{
    size_t row[KEY_MAX + 1];
    const size_t n = strlen(b);

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            const size_t replace = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = smaller(replace, smaller(row[j + 1], row[j]) + 1);
        }
    }
    return row[n];
}

static void normalize(const char *key, char out[KEY_MAX])
{
    size_t n = 0;

    for (; key[n] && n < KEY_MAX - 1; n++)
        out[n] = key[n] == '-' ? '_' : (char)tolower((unsigned char)key[n]);
    out[n] = 0;
}

quire_status qr_config_find(const char *key, const char *origin, enum qr_option *out,
                            struct qr_error *e)
{
    char wanted[KEY_MAX];
    size_t best = KEY_MAX;
    const char *nearest = "";

    normalize(key, wanted);
    for (int i = 0; i < QR_OPTION_COUNT; i++) {
        const char *known = qr_option_row((enum qr_option)i)->key;
        size_t d = distance(wanted, known);
        if (strlen(wanted) >= 3 && d > 1 && !strncmp(known, wanted, strlen(wanted)))
            d = 1; /* the beginning of a key is as good as one edit */
        if (d == 0 && strlen(key) < KEY_MAX) {
            *out = (enum qr_option)i;
            return QUIRE_OK;
        }
        if (d < best) {
            best = d;
            nearest = known;
        }
    }
    return qr_error_set(e, QUIRE_EINVAL,
                        "%s: unknown key \"%.60s\"; the nearest known key is \"%s\" (quired "
                        "--help lists all)",
                        origin, key, nearest);
}
