/* SPDX-License-Identifier: Apache-2.0
 *
 * The value kernel of attend_value_simd.h at three widths, with VNNI and
 * without: names of instructions and nothing else. Included once, by
 * attend_value_avx512.c.
 */
#ifndef QR_ATTEND_VALUE_WIDTHS_AVX512_H
#define QR_ATTEND_VALUE_WIDTHS_AVX512_H

/* Without VNNI: products of two tokens fit 16 bits, as codes are 4 bits at most. */
#define PLAIN(p, acc, weight, code)                                                            \
    _##p##_add_epi32(                                                                          \
        acc, _##p##_madd_epi16(_##p##_maddubs_epi16(weight, code), _##p##_set1_epi16(1)))

#define w_set64(at) w_set64i((int64_t)load64(at))

/* ---- 64 bytes */
#define BYTES 64u
#define vi __m512i
#define vf __m512
#define w_load(p) _mm512_loadu_si512(p)
#define w_store(p, x) _mm512_storeu_si512(p, x)
#define w_unpacklo8(a, b) _mm512_unpacklo_epi8(a, b)
#define w_unpackhi8(a, b) _mm512_unpackhi_epi8(a, b)
#define w_unpacklo16(a, b) _mm512_unpacklo_epi16(a, b)
#define w_unpackhi16(a, b) _mm512_unpackhi_epi16(a, b)
#define w_and(a, b) _mm512_and_si512(a, b)
#define w_srl16(x, n) _mm512_srl_epi16(x, n)
#define w_set8(x) _mm512_set1_epi8(x)
#define w_set64i(x) _mm512_set1_epi64(x)
#define w_set64f(p) _mm512_castsi512_ps(w_set64(p))
#define w_zero() _mm512_setzero_si512()
#define w_add32(a, b) _mm512_add_epi32(a, b)
#define w_sll8(x) _mm512_slli_epi32(x, 8)
#define w_float(x) _mm512_cvtepi32_ps(x)
#define w_mul(a, b) _mm512_mul_ps(a, b)
#define w_evens(a, b) _mm512_shuffle_ps(a, b, 0x88)
#define w_odds(a, b) _mm512_shuffle_ps(a, b, 0xdd)

INLINE void add_lanes64(float *out, __m512 lo, __m512 hi, float min)
{
    const __m512i first =
        _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __m512 x = _mm512_add_ps(_mm512_permutex2var_ps(lo, first, hi), _mm512_set1_ps(min));
    const __m512 y = _mm512_add_ps(_mm512_permutex2var_ps(lo, second, hi), _mm512_set1_ps(min));
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), x));
    _mm512_storeu_ps(out + 16, _mm512_add_ps(_mm512_loadu_ps(out + 16), y));
}
#define w_add_lanes add_lanes64

#define NAME(x) x##_plain64
#define w_dot(acc, weight, code) PLAIN(mm512, acc, weight, code)
#include "attend_value_simd.h"
#undef NAME
#undef w_dot

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512vnni")
#endif
#define NAME(x) x##_vnni64
#define w_dot(acc, weight, code) _mm512_dpbusd_epi32(acc, weight, code)
#include "attend_value_simd.h"
#undef NAME
#undef w_dot
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#undef BYTES
#undef vi
#undef vf
#undef w_load
#undef w_store
#undef w_unpacklo8
#undef w_unpackhi8
#undef w_unpacklo16
#undef w_unpackhi16
#undef w_and
#undef w_srl16
#undef w_set8
#undef w_set64i
#undef w_set64f
#undef w_zero
#undef w_add32
#undef w_sll8
#undef w_float
#undef w_mul
#undef w_evens
#undef w_odds
#undef w_add_lanes

/* ---- 32 bytes */
#define BYTES 32u
#define vi __m256i
#define vf __m256
#define w_load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define w_store(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), x)
#define w_unpacklo8(a, b) _mm256_unpacklo_epi8(a, b)
#define w_unpackhi8(a, b) _mm256_unpackhi_epi8(a, b)
#define w_unpacklo16(a, b) _mm256_unpacklo_epi16(a, b)
#define w_unpackhi16(a, b) _mm256_unpackhi_epi16(a, b)
#define w_and(a, b) _mm256_and_si256(a, b)
#define w_srl16(x, n) _mm256_srl_epi16(x, n)
#define w_set8(x) _mm256_set1_epi8(x)
#define w_set64i(x) _mm256_set1_epi64x(x)
#define w_set64f(p) _mm256_castsi256_ps(w_set64(p))
#define w_zero() _mm256_setzero_si256()
#define w_add32(a, b) _mm256_add_epi32(a, b)
#define w_sll8(x) _mm256_slli_epi32(x, 8)
#define w_float(x) _mm256_cvtepi32_ps(x)
#define w_mul(a, b) _mm256_mul_ps(a, b)
#define w_evens(a, b) _mm256_shuffle_ps(a, b, 0x88)
#define w_odds(a, b) _mm256_shuffle_ps(a, b, 0xdd)

INLINE void add_lanes32(float *out, __m256 lo, __m256 hi, float min)
{
    const __m256 x = _mm256_add_ps(_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_set1_ps(min));
    const __m256 y = _mm256_add_ps(_mm256_permute2f128_ps(lo, hi, 0x31), _mm256_set1_ps(min));
    _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), x));
    _mm256_storeu_ps(out + 8, _mm256_add_ps(_mm256_loadu_ps(out + 8), y));
}
#define w_add_lanes add_lanes32

#define NAME(x) x##_plain32
#define w_dot(acc, weight, code) PLAIN(mm256, acc, weight, code)
#include "attend_value_simd.h"
#undef NAME
#undef w_dot

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512vnni")
#endif
#define NAME(x) x##_vnni32
#define w_dot(acc, weight, code) _mm256_dpbusd_epi32(acc, weight, code)
#include "attend_value_simd.h"
#undef NAME
#undef w_dot
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#undef BYTES
#undef vi
#undef vf
#undef w_load
#undef w_store
#undef w_unpacklo8
#undef w_unpackhi8
#undef w_unpacklo16
#undef w_unpackhi16
#undef w_and
#undef w_srl16
#undef w_set8
#undef w_set64i
#undef w_set64f
#undef w_zero
#undef w_add32
#undef w_sll8
#undef w_float
#undef w_mul
#undef w_evens
#undef w_odds
#undef w_add_lanes

/* ---- 16 bytes */
#define BYTES 16u
#define vi __m128i
#define vf __m128
#define w_load(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define w_store(p, x) _mm_storeu_si128((__m128i *)(void *)(p), x)
#define w_unpacklo8(a, b) _mm_unpacklo_epi8(a, b)
#define w_unpackhi8(a, b) _mm_unpackhi_epi8(a, b)
#define w_unpacklo16(a, b) _mm_unpacklo_epi16(a, b)
#define w_unpackhi16(a, b) _mm_unpackhi_epi16(a, b)
#define w_and(a, b) _mm_and_si128(a, b)
#define w_srl16(x, n) _mm_srl_epi16(x, n)
#define w_set8(x) _mm_set1_epi8(x)
#define w_set64i(x) _mm_set1_epi64x(x)
#define w_set64f(p) _mm_castsi128_ps(w_set64(p))
#define w_zero() _mm_setzero_si128()
#define w_add32(a, b) _mm_add_epi32(a, b)
#define w_sll8(x) _mm_slli_epi32(x, 8)
#define w_float(x) _mm_cvtepi32_ps(x)
#define w_mul(a, b) _mm_mul_ps(a, b)
#define w_evens(a, b) _mm_shuffle_ps(a, b, 0x88)
#define w_odds(a, b) _mm_shuffle_ps(a, b, 0xdd)

INLINE void add_lanes16(float *out, __m128 lo, __m128 hi, float min)
{
    const __m128 x = _mm_add_ps(lo, _mm_set1_ps(min)), y = _mm_add_ps(hi, _mm_set1_ps(min));
    _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), x));
    _mm_storeu_ps(out + 4, _mm_add_ps(_mm_loadu_ps(out + 4), y));
}
#define w_add_lanes add_lanes16

#define NAME(x) x##_plain16
#define w_dot(acc, weight, code) PLAIN(mm, acc, weight, code)
#include "attend_value_simd.h"
#undef NAME
#undef w_dot

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512vnni")
#endif
#define NAME(x) x##_vnni16
#define w_dot(acc, weight, code) _mm_dpbusd_epi32(acc, weight, code)
#include "attend_value_simd.h"
#undef NAME
#undef w_dot
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

struct width {
    void (*interleave)(const struct plan *plan, const uint8_t *codes);
    void (*run)(struct plan *plan, uint32_t rows);
};

/** The widest one whose vectors stay inside one group of channels per field. */
static const struct width *choose_width(const struct qr_attend_value_codes *value)
{
    static const struct width widths[2][3] = {
        {{interleave_plain16, run_plain16},
         {interleave_plain32, run_plain32},
         {interleave_plain64, run_plain64}},
        {{interleave_vnni16, run_vnni16},
         {interleave_vnni32, run_vnni32},
         {interleave_vnni64, run_vnni64}},
    };
    const int vnni = !value->plain && __builtin_cpu_supports("avx512vnni");
    if (value->row_bytes % 64 == 0 && value->group >= 32)
        return &widths[vnni][2];
    return &widths[vnni][value->row_bytes % 32 == 0];
}

#endif
