/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to *_avx512.c: the vector words that rows_simd.h and chan_simd.h are
 * written in, 16 FP32 lanes or 32 halves. `n` is the number of lanes that
 * exist: all, or fewer at the end of a row.
 */
#ifndef QR_VECTOR_AVX512_H
#define QR_VECTOR_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 16

typedef __m512 vf;  /* FP32 lanes */
typedef __m256i vh; /* as many FP16 or BF16 */
typedef __m512i vk; /* 2 x LANES FP16 keys */

static inline __mmask16 lanes_of(uint32_t n)
{
    return n >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1u);
}

static inline __mmask32 halves_of(uint32_t n)
{
    return n >= 2 * LANES ? 0xffffffffu : (1u << n) - 1u;
}

static inline vf vf_load(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(lanes_of(n), p);
}

static inline void vf_store(float *p, vf x, uint32_t n)
{
    _mm512_mask_storeu_ps(p, lanes_of(n), x);
}

static inline vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/** a * b - c in even lanes, a * b + c in odd ones, each rounded once. */
static inline vf vf_fma_alternating(vf a, vf b, vf c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}

/** a * b - c, rounded once. */
static inline vf vf_fms(vf a, vf b, vf c)
{
    return _mm512_fmsub_ps(a, b, c);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/** Swap lanes 2i and 2i + 1. */
static inline vf vf_swap_pairs(vf x)
{
    return _mm512_permute_ps(x, 0xb1);
}

/** p[0], p[0], p[1], p[1], ... */
static inline vf vf_load_twice(const float *p, uint32_t n)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, vf_load(p, n));
}

static inline vh vh_load(const uint16_t *p, uint32_t n)
{
    return _mm256_maskz_loadu_epi16(lanes_of(n), p);
}

static inline void vh_store(uint16_t *p, vh x, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, lanes_of(n), x);
}

static inline vf vf_from_f16(vh x)
{
    return _mm512_cvtph_ps(x);
}

static inline vh vf_to_f16(vf x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

static inline vf vf_from_bf16(vh x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/** Round to nearest even; x is not NaN. */
static inline vh vf_to_bf16(vf x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, half), 16));
}

/** One bit per lane: the FP16 value is infinite or NaN. */
static inline uint32_t vh_not_finite(vh x)
{
    const vh exponent = _mm256_set1_epi16(0x7c00);
    return _mm256_cmpeq_epi16_mask(_mm256_and_si256(x, exponent), exponent);
}

static inline void vh_stream(uint16_t *p, vh x)
{
    _mm256_stream_si256((__m256i *)(void *)p, x);
}

static inline void vf_stream(float *p, vf x)
{
    _mm512_stream_ps(p, x);
}

static inline vf vf_from_u8(const uint8_t *p, uint32_t n)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes_of(n), p)));
}

static inline vh vh_set(uint16_t x)
{
    return _mm256_set1_epi16((int16_t)x);
}

/** min(rint(x), top); 0 <= x < 2^15. */
static inline vh vh_codes(vf x, vh top)
{
    return _mm256_min_epu16(_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)), top);
}

/** a where x >= limit in that lane, else b. */
static inline vh vh_select_ge(vf x, vf limit, vh a, vh b)
{
    return _mm256_mask_blend_epi16(_mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ), b, a);
}

/** 1 / s where s > 0, else 0. */
static inline vf vf_reciprocal(vf s)
{
    const __mmask16 positive = _mm512_cmp_ps_mask(s, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_maskz_div_ps(positive, _mm512_set1_ps(1.0f), s);
}

static inline vh vh_decrement(vh x)
{
    return _mm256_sub_epi16(x, _mm256_set1_epi16(1));
}

static inline vk vk_set(int16_t x)
{
    return _mm512_set1_epi16(x);
}

/** Keys that order FP16 values as signed integers, -0 just below +0. Missing lanes: key 0. */
static inline vk vk_load(const uint16_t *p, uint32_t n)
{
    const vk x = _mm512_maskz_loadu_epi16(halves_of(n), p);
    const vk flip = _mm512_srli_epi16(_mm512_srai_epi16(x, 15), 1);
    return _mm512_xor_si512(x, flip);
}

static inline vk vk_min(vk a, vk b)
{
    return _mm512_min_epi16(a, b);
}

static inline vk vk_max(vk a, vk b)
{
    return _mm512_max_epi16(a, b);
}

/** The FP16 values of keys, stored. */
static inline void vk_store_values(uint16_t *p, vk x, uint32_t n)
{
    const vk flip = _mm512_srli_epi16(_mm512_srai_epi16(x, 15), 1);
    _mm512_mask_storeu_epi16(p, halves_of(n), _mm512_xor_si512(x, flip));
}

/** Smallest of every 8th key. */
static inline __m128i vk_fold_min(vk x)
{
    const __m256i half =
        _mm256_min_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return _mm_min_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

static inline __m128i vk_fold_max(vk x)
{
    const __m256i half =
        _mm256_max_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* Halves that are plain 16-bit words. */

static inline vk vk_load_words(const uint16_t *p)
{
    return _mm512_loadu_si512(p);
}

/** The first n words, or all. */
static inline void vk_store_words(uint8_t *p, vk x, uint32_t n)
{
    _mm512_mask_storeu_epi16(p, halves_of(n), x);
}

static inline vk vk_and(vk a, vk b)
{
    return _mm512_and_si512(a, b);
}

static inline vk vk_or(vk a, vk b)
{
    return _mm512_or_si512(a, b);
}

static inline vk vk_xor(vk a, vk b)
{
    return _mm512_xor_si512(a, b);
}

static inline vk vk_shift_left(vk x, int n)
{
    return _mm512_slli_epi16(x, n);
}

static inline vk vk_shift_right(vk x, int n)
{
    return _mm512_srli_epi16(x, n);
}

/** Lanes i and i + 8 of 16 add up. */
static inline __m256 vf_fold16(const vf x[1])
{
    return _mm256_add_ps(_mm512_castps512_ps256(x[0]), _mm512_extractf32x8_ps(x[0], 1));
}

static inline void vector_fence(void)
{
    _mm_sfence();
}

#endif
