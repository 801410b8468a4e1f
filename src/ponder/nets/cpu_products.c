/* Products of rows with a packed matrix on a CPU, in float32: x [rows, inputs] times a matrix [outputs, inputs].
 *
 * It is packed as [outputs / WIDTH, inputs, WIDTH], the last outputs filled up with zeros: one panel of outputs, read from
 * start to end. A tile of ROWS times WIDTH sums stays in registers, a block of a panel in the second cache for a group of
 * rows, and the next block is fetched meanwhile, since the matrices of a network are read from memory in every pass.
 * A sum adds in the order of the inputs, so it depends neither on the other rows nor on the threads.
 */
#include "cpu_numbers.h"

#if LANES == 16
#define ROWS 8
#define FUSED(a, b, c) (vec) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#elif LANES == 8 && defined(__FMA__)
#include <immintrin.h>
#define ROWS 4 /* 16 registers */
#define FUSED(a, b, c) (vec) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#endif

#ifndef ROWS

void panel_width(int64_t *width) { *width = 0; } /* other processors have libraries that are as fast */
void pack(const float *weight, int64_t outputs, int64_t inputs, float *packed, int64_t threads) {}
void multiply(const float *x, int64_t rows, int64_t inputs, const float *packed, const float *bias, int64_t outputs,
              float *out, int64_t threads) {}

#else

#define VECS 3
#define WIDTH (VECS * LANES)
#define DEPTH 1024 /* inputs of a block */
#define GROUP (16 * ROWS) /* rows that read a block one after the other */
#define NEAR 10    /* inputs ahead whose weights are fetched into the first cache */

void panel_width(int64_t *width) { *width = WIDTH; }

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void pack(const float *weight, int64_t outputs, int64_t inputs, float *packed, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t from = 0; from < outputs; from += WIDTH) {
        float *panel = packed + from * inputs;
        int64_t width = smaller(outputs - from, WIDTH);
        for (int64_t first = 0; first < inputs; first += LANES)
            for (int64_t o = 0; o < WIDTH; o++)
                for (int64_t i = first; i < inputs && i < first + LANES; i++)
                    panel[i * WIDTH + o] = o < width ? weight[(from + o) * inputs + i] : 0;
    }
}

typedef struct {
    const float *x, *panel, *start, *later; /* start: the sums so far, a bias, or null */
    int64_t stride, inputs, start_stride, later_step, out_stride, width;
    float *out;
} Tile;

/* out[rows, width] of one panel. */
INLINE void multiply_tile(const int rows, const Tile t) {
    vec sum[ROWS][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECS; v++) {
            sum[r][v] = (vec){0};
            int64_t have = t.start ? smaller(t.width - v * LANES, LANES) : 0;
            if (have == LANES)
                sum[r][v] = *(const vec *)(t.start + r * t.start_stride + v * LANES);
            else if (have > 0)
                memcpy(&sum[r][v], t.start + r * t.start_stride + v * LANES, have * sizeof(float));
        }
    const float *weights = t.panel, *later = t.later;
    for (int64_t i = 0; i < t.inputs; i++, weights += WIDTH, later += t.later_step) {
        vec w[VECS];
#pragma GCC unroll 3
        for (int v = 0; v < VECS; v++) {
            w[v] = *(const vec *)(weights + v * LANES);
            __builtin_prefetch(weights + NEAR * WIDTH + v * LANES, 0, 3);
        }
        __builtin_prefetch(later, 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vec x = t.x[r * t.stride + i] - (vec){0};
#pragma GCC unroll 3
            for (int v = 0; v < VECS; v++) sum[r][v] = FUSED(x, w[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECS; v++) {
            int64_t have = smaller(t.width - v * LANES, LANES);
            if (have == LANES)
                *(vec *)(t.out + r * t.out_stride + v * LANES) = sum[r][v];
            else if (have > 0)
                memcpy(t.out + r * t.out_stride + v * LANES, &sum[r][v], have * sizeof(float));
        }
}

/* One function for each number of rows, so that its sums stay in registers. */
#define TILE_OF(rows) \
    __attribute__((noinline)) static void multiply_tile_##rows(const Tile *t) { multiply_tile(rows, *t); }
TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
#if ROWS == 8
TILE_OF(5)
TILE_OF(6)
TILE_OF(7)
TILE_OF(8)
#endif

static void (*const TILES[])(const Tile *) = {
    multiply_tile_1, multiply_tile_2, multiply_tile_3, multiply_tile_4,
#if ROWS == 8
    multiply_tile_5, multiply_tile_6, multiply_tile_7, multiply_tile_8,
#endif
};

/* A group of rows times a panel; `next` is what this thread multiplies with after it. */
static void multiply_panel(const float *x, int64_t rows, int64_t inputs, const float *panel, const float *next,
                           const float *bias, int64_t width, float *out, int64_t outputs) {
    int64_t tiles = (rows + ROWS - 1) / ROWS;
    for (int64_t from = 0; from < inputs; from += DEPTH) {
        int64_t depth = smaller(inputs - from, DEPTH);
        const float *block = panel + from * WIDTH, *later = from + DEPTH < inputs ? block + DEPTH * WIDTH : next;
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t row = tile * ROWS, step = WIDTH / tiles;
            Tile t = {x + row * inputs + from, block, from ? out + row * outputs : bias, later + tile * step * depth,
                      inputs, depth, from ? outputs : 0, step, outputs, width, out + row * outputs};
            TILES[smaller(rows - row, ROWS) - 1](&t);
        }
    }
}

/* out [rows, outputs] = x times a packed matrix, plus a bias unless it is null. */
void multiply(const float *x, int64_t rows, int64_t inputs, const float *packed, const float *bias, int64_t outputs,
              float *out, int64_t threads) {
    if (!rows) return;
    int64_t panels = (outputs + WIDTH - 1) / WIDTH, parts = (4 * threads + panels - 1) / panels;
    int64_t group = smaller(((rows + parts - 1) / parts + ROWS - 1) / ROWS * ROWS, GROUP);
    int64_t tasks = (rows + group - 1) / group * panels;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t row = task / panels * group, at = task % panels, next = (task + threads) % panels;
        multiply_panel(x + row * inputs, smaller(rows - row, group), inputs, packed + at * inputs * WIDTH,
                       packed + next * inputs * WIDTH, bias ? bias + at * WIDTH : NULL,
                       smaller(outputs - at * WIDTH, WIDTH), out + row * outputs + at * WIDTH, outputs);
    }
}

#endif
