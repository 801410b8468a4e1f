/* Numbers of the C files beside it: float32, or bfloat16 where BFLOAT16 is defined. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef BFLOAT16
typedef uint16_t number;
static inline float widen(number x) {
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}
static inline number narrow(float x) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (number)(x != x ? 0x7fc0 : rounded);
}
#else
typedef float number;
static inline float widen(number x) { return x; }
static inline number narrow(float x) { return x; }
#endif
static inline float rounded(float x) { return widen(narrow(x)); }

#define INLINE __attribute__((always_inline)) static inline

/* `limit` where `mask` is -1, x where it is 0: a choice without a branch, so that loops become vectors. */
static inline float limited(float x, float limit, int32_t mask) {
    int32_t bits, limits;
    memcpy(&bits, &x, 4), memcpy(&limits, &limit, 4);
    bits = (bits & ~mask) | (limits & mask);
    memcpy(&x, &bits, 4);
    return x;
}

/* e to the x, within 2 units in the last place; 0 below -87.3 as far as float32 has room. */
static inline float fast_exp(float x) {
    x = limited(x, -87.3f, -(x < -87.3f)); /* NaN stays */
    x = limited(x, 87.3f, -(x > 87.3f));
    float t = x * 1.44269504088896341f;
    int32_t n = (int32_t)(t + copysignf(0.5f, t));
    float f = (float)n;
    float r = x - f * 0.693359375f + f * 2.12194440e-4f;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t power = (n + 127) << 23;
    float scale;
    memcpy(&scale, &power, 4);
    return p * scale;
}

/* Vectors of float32, as wide as the processor's. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec load_vec(const number *x) {
#ifdef BFLOAT16
    typedef uint16_t half_vec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
    return (vec)(__builtin_convertvector(*(const half_vec *)x, uvec) << 16);
#else
    return *(const vec *)x;
#endif
}

INLINE float sum_vec(vec x) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
#endif
}
