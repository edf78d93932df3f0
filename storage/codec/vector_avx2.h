/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to *_avx2.c: the vector words that rows_simd.h and chan_simd.h are
 * written in, 8 FP32 lanes or 16 halves. Rows are multiples of 8, so FP32
 * lanes always exist (`n` is for wider machines); halves may be 8 of 16.
 */
#ifndef QR_VECTOR_AVX2_H
#define QR_VECTOR_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 8

typedef __m256 vf;  /* FP32 lanes */
typedef __m128i vh; /* as many FP16 or BF16 */
typedef __m256i vk; /* 2 x LANES FP16 keys */

static inline vf vf_load(const float *p, uint32_t n)
{
    (void)n;
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf x, uint32_t n)
{
    (void)n;
    _mm256_storeu_ps(p, x);
}

static inline vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/** a * b - c in even lanes, a * b + c in odd ones, each rounded once. */
static inline vf vf_fma_alternating(vf a, vf b, vf c)
{
    return _mm256_fmaddsub_ps(a, b, c);
}

/** a * b - c, rounded once. */
static inline vf vf_fms(vf a, vf b, vf c)
{
    return _mm256_fmsub_ps(a, b, c);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

/** Swap lanes 2i and 2i + 1. */
static inline vf vf_swap_pairs(vf x)
{
    return _mm256_permute_ps(x, 0xb1);
}

/** p[0], p[0], p[1], p[1], ... */
static inline vf vf_load_twice(const float *p, uint32_t n)
{
    const __m256 four = _mm256_castps128_ps256(_mm_loadu_ps(p));
    (void)n;
    return _mm256_permutevar8x32_ps(four, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}

static inline vh vh_load(const uint16_t *p, uint32_t n)
{
    (void)n;
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline void vh_store(uint16_t *p, vh x, uint32_t n)
{
    (void)n;
    _mm_storeu_si128((__m128i *)(void *)p, x);
}

static inline vf vf_from_f16(vh x)
{
    return _mm256_cvtph_ps(x);
}

/** Into a register: on Zen 3, converting straight to memory takes twice as long as this and a
 * store. */
static inline vh vf_to_f16(vf x)
{
    vh y = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    __asm__("" : "+x"(y));
    return y;
}

static inline vf vf_from_bf16(vh x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/** Round to nearest even; x is not NaN. */
static inline vh vf_to_bf16(vf x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i high = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

/** One bit per lane: the FP16 value is infinite or NaN. */
static inline uint32_t vh_not_finite(vh x)
{
    const vh exponent = _mm_set1_epi16(0x7c00);
    const vh bad = _mm_cmpeq_epi16(_mm_and_si128(x, exponent), exponent);
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(bad, _mm_setzero_si128()));
}

static inline void vh_stream(uint16_t *p, vh x)
{
    _mm_stream_si128((__m128i *)(void *)p, x);
}

static inline void vf_stream(float *p, vf x)
{
    _mm256_stream_ps(p, x);
}

static inline vf vf_from_u8(const uint8_t *p, uint32_t n)
{
    (void)n;
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

static inline vh vh_set(uint16_t x)
{
    return _mm_set1_epi16((int16_t)x);
}

/** min(rint(x), top); 0 <= x < 2^15. */
static inline vh vh_codes(vf x, vh top)
{
    const __m256i q = _mm256_cvtps_epi32(x);
    return _mm_min_epu16(
        _mm_packus_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)), top);
}

/** a where x >= limit in that lane, else b. */
static inline vh vh_select_ge(vf x, vf limit, vh a, vh b)
{
    const __m256i ge = _mm256_castps_si256(_mm256_cmp_ps(x, limit, _CMP_GE_OQ));
    const vh mask =
        _mm_packs_epi32(_mm256_castsi256_si128(ge), _mm256_extracti128_si256(ge, 1));
    return _mm_blendv_epi8(b, a, mask);
}

/** 1 / s where s > 0, else 0. */
static inline vf vf_reciprocal(vf s)
{
    const vf positive = _mm256_cmp_ps(s, _mm256_setzero_ps(), _CMP_GT_OQ);
    return _mm256_and_ps(positive, _mm256_div_ps(_mm256_set1_ps(1.0f), s));
}

static inline vh vh_decrement(vh x)
{
    return _mm_sub_epi16(x, _mm_set1_epi16(1));
}

static inline vk vk_set(int16_t x)
{
    return _mm256_set1_epi16(x);
}

static inline vk vk_flip(vk x)
{
    return _mm256_xor_si256(x, _mm256_srli_epi16(_mm256_srai_epi16(x, 15), 1));
}

/** Keys that order FP16 values as signed integers, -0 just below +0. Missing lanes: key 0. */
static inline vk vk_load(const uint16_t *p, uint32_t n)
{
    if (n >= 2 * LANES)
        return vk_flip(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return vk_flip(_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

static inline vk vk_min(vk a, vk b)
{
    return _mm256_min_epi16(a, b);
}

static inline vk vk_max(vk a, vk b)
{
    return _mm256_max_epi16(a, b);
}

/** The FP16 values of keys, stored. */
static inline void vk_store_values(uint16_t *p, vk x, uint32_t n)
{
    if (n >= 2 * LANES)
        _mm256_storeu_si256((__m256i *)(void *)p, vk_flip(x));
    else
        _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(vk_flip(x)));
}

/** Smallest of every 8th key. */
static inline __m128i vk_fold_min(vk x)
{
    return _mm_min_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

static inline __m128i vk_fold_max(vk x)
{
    return _mm_max_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/* Halves that are plain 16-bit words. */

static inline vk vk_load_words(const uint16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/** The first n words, or all. */
static inline void vk_store_words(uint8_t *p, vk x, uint32_t n)
{
    if (n >= 2 * LANES) {
        _mm256_storeu_si256((__m256i *)(void *)p, x);
        return;
    }
    __m128i rest = _mm256_castsi256_si128(x);
    if (n >= 8) {
        _mm_storeu_si128((__m128i *)(void *)p, rest);
        rest = _mm256_extracti128_si256(x, 1);
        p += 16;
    }
    uint16_t words[8];
    _mm_storeu_si128((__m128i *)(void *)words, rest);
    for (uint32_t i = 0; i < n % 8; i++, p += 2)
        memcpy(p, &words[i], 2);
}

static inline vk vk_and(vk a, vk b)
{
    return _mm256_and_si256(a, b);
}

static inline vk vk_or(vk a, vk b)
{
    return _mm256_or_si256(a, b);
}

static inline vk vk_xor(vk a, vk b)
{
    return _mm256_xor_si256(a, b);
}

static inline vk vk_shift_left(vk x, int n)
{
    return _mm256_slli_epi16(x, n);
}

static inline vk vk_shift_right(vk x, int n)
{
    return _mm256_srli_epi16(x, n);
}

/** Lanes i and i + 8 of 16 add up. */
static inline __m256 vf_fold16(const vf x[2])
{
    return _mm256_add_ps(x[0], x[1]);
}

static inline void vector_fence(void)
{
    _mm_sfence();
}

#endif
