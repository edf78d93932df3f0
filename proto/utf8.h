/* SPDX-License-Identifier: Apache-2.0
 *
 * What is UTF-8: overlong forms, surrogates and code points past U+10FFFF are
 * not. For model.c and wire*.c.
 */
#ifndef QR_UTF8_H
#define QR_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Bytes of the sequence that `lead` starts; 0: none does. */
static inline size_t utf8_length(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if ((lead & 0xe0) == 0xc0)
        return 2;
    if ((lead & 0xf0) == 0xe0)
        return 3;
    return (lead & 0xf8) == 0xf0 ? 4 : 0;
}

/** Whether s[0 .. n) is one code point, n being utf8_length(s[0]). */
static inline bool utf8_valid(const uint8_t *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (n < 2)
        return n == 1;
    uint32_t point = s[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return false;
        point = point << 6 | (s[i] & 0x3fu);
    }
    return point >= least[n] && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
}

#endif
