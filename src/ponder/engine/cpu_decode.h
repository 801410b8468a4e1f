/* What compiled decoding steps share: vectors, norms, attention over slots of the cache, and sampling.
 *
 * A product is rounded before it is added except by `fused`: compilers choose by the number of rows, so the flags of
 * cpu_decode_library.py leave them no choice.
 */
#pragma once
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define ROWS 4
#else
#define LANES 4
#define ROWS 4
#endif
#define MAX_THREADS 64
#define MAX_HEAD 256

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias)); /* head sizes are multiples of 8 */

/* Weights, keys and values. Other numbers are float32, `rounded` wherever torch keeps one in the type of the weights. */
#ifdef BFLOAT16
typedef uint16_t number;
typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint16_t hvec4 __attribute__((vector_size(8), aligned(2), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t uvec4 __attribute__((vector_size(16), aligned(4), may_alias));

static inline vec load(const number *from) { return (vec)(__builtin_convertvector(*(const hvec *)from, uvec) << 16); }
static inline vec4 load4(const number *from) {
    return (vec4)(__builtin_convertvector(*(const hvec4 *)from, uvec4) << 16);
}
static inline float to_float(number x) {
    union { uint32_t bits; float value; } both = {.bits = (uint32_t)x << 16};
    return both.value;
}
static inline number to_number(float x) { /* the nearest; of two the even one */
    union { float value; uint32_t bits; } both = {.value = x};
    if (x != x) return 0x7fc0;
    return (number)((both.bits + 0x7fff + (both.bits >> 16 & 1)) >> 16);
}
static inline float rounded(float x) { return to_float(to_number(x)); }
static inline vec rounded_vec(vec x) {
    uvec bits = (uvec)x, up = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    return (vec)(((ivec)(x == x) & (ivec)up) | (~(ivec)(x == x) & (ivec)x)); /* NaN stays */
}
#else
typedef float number;
static inline vec load(const number *from) { return *(const vec *)from; }
static inline vec4 load4(const number *from) { return *(const vec4 *)from; }
static inline float to_float(number x) { return x; }
static inline number to_number(float x) { return x; }
static inline float rounded(float x) { return x; }
static inline vec rounded_vec(vec x) { return x; }
#endif

typedef struct {
    const int32_t *slots;  /* of its tokens, by position */
    const uint8_t *ends;   /* whether a token of the vocabulary ends it */
    uint64_t rng_key;
    int64_t drawn;         /* random numbers so far */
    int64_t position;      /* of its next input */
    int64_t left;          /* tokens that it may still sample */
    float temperature;     /* 0: greedy */
    int32_t token;         /* the next input */
} Row;

/* a times b plus c, rounded once where the processor can. */
static inline vec4 fused4(vec4 a, vec4 b, vec4 c) {
#if defined(__FMA__)
    return (vec4)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
    return (vec4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline vec fused(vec a, vec b, vec c) {
#if LANES == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (vec)fused4((vec4)a, (vec4)b, (vec4)c);
#endif
}

static inline vec4 splat4(float x) { return (vec4){x, x, x, x}; }

static inline vec splat(float x) {
#if LANES == 4
    return (vec)splat4(x); /* one instruction: gcc makes four of the loop below */
#else
    vec v;
    for (int i = 0; i < LANES; i++) v[i] = x;
    return v;
#endif
}

#define MIN_EXPONENT -87.3f /* a float32 of its normal range */

static inline vec vexp(vec x) {
    vec low = {0}, half = {0};
    low = low + MIN_EXPONENT;
    vec high = -low;
    half = half + 0.5f;
    x = (vec)(((ivec)(x < low) & (ivec)low) | (~(ivec)(x < low) & (ivec)x)); /* NaN stays */
    x = (vec)(((ivec)(x > high) & (ivec)high) | (~(ivec)(x > high) & (ivec)x));
    vec t = x * 1.44269504088896341f;
    vec away = (vec)(((ivec)(t < 0) & (ivec)(-half)) | (~(ivec)(t < 0) & (ivec)half));
    ivec n = __builtin_convertvector(t + away, ivec);
    vec f = __builtin_convertvector(n, vec);
    vec r = fused(f, splat(-0.693359375f), x);
    r = fused(f, splat(2.12194440e-4f), r);
    vec p = fused(r, splat(1.9875691500e-4f), splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p * r, r, r) + 1.0f;
    return p * (vec)((n + 127) << 23);
}

static void rms_norm(const float *x, int64_t n, const number *weight, float eps, float *out) {
    float part[8] = {0};
    for (int64_t i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) part[j] += x[i + j] * x[i + j];
    float sum = ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
    float by = 1.0f / sqrtf(sum / (float)n + eps);
    for (int64_t i = 0; i < n; i++) out[i] = rounded(rounded(x[i] * by) * to_float(weight[i]));
}

#define AHEAD 12 /* keys or values that are fetched before they are needed */

/* Attention of one query head: softmax of its scores over the keys, then the weighted values. */
__attribute__((always_inline)) static inline void attend(const float *q, const number *keys, const number *values,
                                                         const int32_t *slots, int64_t count, float *scores,
                                                         const int size, float *out) {
    vec4 query[MAX_HEAD / 4], mixed[MAX_HEAD / 4];
#pragma GCC unroll 16
    for (int d = 0; d < size / 4; d++) query[d] = *(const vec4 *)(q + 4 * d), mixed[d] = (vec4){0};
    for (int64_t i = 0; i < count; i++) {
        const number *key = keys + (int64_t)slots[i] * size;
        const number *later = keys + (int64_t)slots[i + AHEAD < count ? i + AHEAD : i] * size;
        vec4 even = {0}, odd = {0};
#pragma GCC unroll 16
        for (int d = 0; d < size / 4; d += 2) {
            even = fused4(query[d], load4(key + 4 * d), even);
            odd = fused4(query[d + 1], load4(key + 4 * d + 4), odd);
        }
        for (int d = 0; d < size; d += 16) __builtin_prefetch(later + d);
        even += odd;
        scores[i] = (even[0] + even[1]) + (even[2] + even[3]);
    }
    for (int64_t i = count; i % LANES; i++) scores[i] = -INFINITY;
    vec totals = {0}, tops = *(vec *)scores;
    for (int64_t i = LANES; i < count; i += LANES) {
        vec here = *(vec *)(scores + i);
        tops = (vec)(((ivec)(here > tops) & (ivec)here) | (~(ivec)(here > tops) & (ivec)tops));
    }
    float top = tops[0], rest = 0;
    for (int j = 1; j < LANES; j++) top = tops[j] > top ? tops[j] : top;
    for (int64_t i = 0; i < count; i += LANES) {
        vec w = vexp(*(vec *)(scores + i) - top);
        *(vec *)(scores + i) = w;
        if (i + LANES <= count)
            totals += w;
        else
            for (int j = 0; i + j < count; j++) rest += w[j];
    }
    float total = 0;
    for (int j = 0; j < LANES; j++) total += totals[j];
    total += rest;
    for (int64_t i = 0; i < count; i++) {
        const number *value = values + (int64_t)slots[i] * size;
        const number *later = values + (int64_t)slots[i + AHEAD < count ? i + AHEAD : i] * size;
        vec4 weight = splat4(scores[i]);
#pragma GCC unroll 16
        for (int d = 0; d < size / 4; d++) mixed[d] = fused4(weight, load4(value + 4 * d), mixed[d]);
        for (int d = 0; d < size; d += 16) __builtin_prefetch(later + d);
    }
#pragma GCC unroll 16
    for (int d = 0; d < size / 4; d++) *(vec4 *)(out + 4 * d) = mixed[d] / total;
}

static void attend_any(const float *q, const number *keys, const number *values, const int32_t *slots, int64_t count,
                       float *scores, int size, float *out) {
    switch (size) { /* constants, so that loops over a head are unrolled */
    case 8: attend(q, keys, values, slots, count, scores, 8, out); break;
    case 16: attend(q, keys, values, slots, count, scores, 16, out); break;
    case 32: attend(q, keys, values, slots, count, scores, 32, out); break;
    case 64: attend(q, keys, values, slots, count, scores, 64, out); break;
    default: attend(q, keys, values, slots, count, scores, size, out);
    }
}

static void rotate(float *head, int64_t size, const float *cosines, const float *sines) {
    for (int64_t i = 0, half = size / 2; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = rounded(rounded(a * cosines[i]) - rounded(b * sines[i]));
        head[i + half] = rounded(rounded(b * cosines[i]) + rounded(a * sines[i]));
    }
}

/* A gate, activated, times up. */
static inline vec activate(vec gate, vec up, int gelu) {
    vec inner = gate;
    if (gelu) inner = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate); /* tanh by way of exp */
    return rounded_vec(rounded_vec(gate / (1.0f + vexp(-inner))) * up);
}

static uint64_t splitmix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

#define SUMMED 256 /* chances whose sum is kept */

/* As sampler.sample_tokens: inverts the cumulative distribution, in float64. `logits` has room for whole vectors, and is
 * overwritten; `sums` has room for one number per SUMMED tokens. */
static int32_t sample(const Row *row, float *logits, int64_t vocab, double *sums, float *logprob) {
    int64_t best = 0, token = 0, whole = (vocab + LANES - 1) / LANES * LANES;
    if (row->temperature != 0 && row->temperature != 1)
        for (int64_t i = 0; i < vocab; i++) logits[i] = logits[i] / row->temperature;
    for (int64_t i = vocab; i < whole; i++) logits[i] = -INFINITY;
    vec tops = splat(-INFINITY);
    for (int64_t i = 0; i < whole; i += LANES) {
        vec here = *(vec *)(logits + i);
        tops = (vec)(((ivec)(here > tops) & (ivec)here) | (~(ivec)(here > tops) & (ivec)tops));
    }
    float top = tops[0];
    for (int j = 1; j < LANES; j++) top = tops[j] > top ? tops[j] : top;
    while (best < vocab - 1 && logits[best] != top) best++; /* the first of equal ones */
    double total = 0, reached = 0;
    for (int64_t from = 0; from < vocab; from += SUMMED) {
        double sum = 0;
        for (int64_t i = from; i < from + SUMMED && i < vocab; i += LANES) {
            vec chances = vexp(*(vec *)(logits + i) - top);
            for (int j = 0; j < LANES && i + j < vocab; j++) sum += (double)chances[j];
        }
        total += sums[from / SUMMED] = sum;
    }
    if (row->temperature == 0) {
        token = best;
    } else {
        uint64_t bits = splitmix(row->rng_key + 0x9E3779B97F4A7C15u * (uint64_t)(row->drawn + 1));
        double goal = (double)(bits >> 11) * 0x1p-53 * total;
        int64_t at = 0;
        for (; at + SUMMED < vocab && !(reached + sums[at / SUMMED] > goal); at += SUMMED) reached += sums[at / SUMMED];
        for (; at < vocab && !(reached > goal); at += LANES) {
            vec chances = vexp(*(vec *)(logits + at) - top);
            for (int j = 0; j < LANES && at + j < vocab && !(reached > goal); j++)
                reached += (double)chances[j], token = at + j;
        }
        if (!(logits[token] - top > MIN_EXPONENT)) token = best;
    }
    *logprob = logits[token] - top - (float)log(total);
    return (int32_t)token;
}
