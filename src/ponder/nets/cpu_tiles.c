/* Products of rows with a matrix in bfloat16 by the matrix units of x86 processors (AMX). Only where they are: elsewhere
 * this file does not compile.
 *
 * A matrix is packed as tiles of 16 outputs and 32 inputs, [outputs / 16][inputs / 32][16 pairs of inputs][16 outputs][2],
 * in the order in which they are read. Sums are float32.
 */
#include "cpu_numbers.h"
#if !defined(BFLOAT16) || !defined(__AMX_BF16__)
#error "no matrix units for these numbers"
#endif
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE 16  /* rows, and outputs */
#define DEPTH 32 /* inputs */
#define GROUP 8  /* panels of outputs that are read for two tiles of rows before the next two: they stay in the L2 cache */
#define AHEAD 12 /* tiles of the matrix that are fetched ahead */

/* Ask the system for the tiles' registers, for this process; 0: it has none. */
int request_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShapes;

static inline void shape_tiles(void) {
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.row_bytes[i] = 64, shapes.rows[i] = TILE;
    _tile_loadconfig(&shapes);
}

INLINE void fetch_tile(const number *tile) {
    for (int i = 0; i < DEPTH * TILE; i += 32) _mm_prefetch((const char *)(tile + i), _MM_HINT_T0);
}

/* Sums of one or two tiles of rows with one or two panels of 16 outputs; sums[row tile][panel][16][16]. `fetches`: the
 * matrix comes from memory. */
INLINE void multiply_tiles(const int row_tiles, const int panels, const int fetches, const number *const *x,
                           int64_t inputs, const number *matrix, float *sums) {
    int64_t stride = inputs * (int64_t)sizeof(number);
    const number *second = matrix + TILE * inputs;
    _tile_zero(0);
    if (panels > 1) _tile_zero(1);
    if (row_tiles > 1) _tile_zero(2);
    if (row_tiles > 1 && panels > 1) _tile_zero(3);
    for (int64_t i = 0; i < inputs; i += DEPTH) {
        _tile_loadd(4, x[0] + i, stride);
        _tile_loadd(6, matrix + i * TILE, 64);
        if (fetches) fetch_tile(matrix + (i + AHEAD * DEPTH) * TILE);
        _tile_dpbf16ps(0, 4, 6);
        if (row_tiles > 1) {
            _tile_loadd(5, x[1] + i, stride);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (panels > 1) {
            _tile_loadd(7, second + i * TILE, 64);
            if (fetches) fetch_tile(second + (i + AHEAD * DEPTH) * TILE);
            _tile_dpbf16ps(1, 4, 7);
            if (row_tiles > 1) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 64);
    if (panels > 1) _tile_stored(1, sums + 256, 64);
    if (row_tiles > 1) _tile_stored(2, sums + 512, 64);
    if (row_tiles > 1 && panels > 1) _tile_stored(3, sums + 768, 64);
}

static void multiply_pair(int row_tiles, int panels, int fetches, const number *const *x, int64_t inputs,
                          const number *matrix, float *sums) {
    if (row_tiles == 2 && panels == 2 && fetches)
        multiply_tiles(2, 2, 1, x, inputs, matrix, sums);
    else if (row_tiles == 2 && panels == 2)
        multiply_tiles(2, 2, 0, x, inputs, matrix, sums);
    else if (row_tiles == 2)
        multiply_tiles(2, 1, 0, x, inputs, matrix, sums);
    else if (panels == 2)
        multiply_tiles(1, 2, 1, x, inputs, matrix, sums);
    else
        multiply_tiles(1, 1, 1, x, inputs, matrix, sums);
}

/* out[rows, outputs] = x[rows, inputs] times the matrix, plus a bias unless it is null. last: x's rows of the last tile,
 * padded to 16, or null where rows is a multiple of 16. */
void multiply(const number *x, const number *last, int64_t rows, int64_t inputs, const number *matrix, int64_t outputs,
              const number *bias, number *out, int64_t threads) {
    int64_t all_panels = outputs / TILE, row_tiles = (rows + TILE - 1) / TILE;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        float sums[4 * TILE * TILE] __attribute__((aligned(64)));
        int64_t begin = part * all_panels / threads, end = (part + 1) * all_panels / threads;
        shape_tiles();
        for (int64_t group = begin; group < end; group += GROUP) {
            int64_t group_end = group + GROUP < end ? group + GROUP : end;
            for (int64_t first = 0; first < row_tiles; first += 2) {
                int tiles = row_tiles - first < 2 ? 1 : 2;
                const number *starts[2];
                for (int i = 0; i < tiles; i++)
                    starts[i] = last && first + i == row_tiles - 1 ? last : x + (first + i) * TILE * inputs;
                for (int64_t panel = group; panel < group_end; panel += 2) {
                    int panels = group_end - panel < 2 ? 1 : 2;
                    multiply_pair(tiles, panels, first == 0, starts, inputs, matrix + panel * TILE * inputs, sums);
                    for (int64_t row = 0; row < tiles * TILE && first * TILE + row < rows; row++) {
                        number *to = out + (first * TILE + row) * outputs + panel * TILE;
                        for (int p = 0; p < panels; p++) {
                            const float *sum = sums + (row / TILE * 2 + p) * TILE * TILE + row % TILE * TILE;
                            const number *more = bias ? bias + (panel + p) * TILE : 0;
                            for (int i = 0; i < TILE; i++)
                                to[p * TILE + i] = narrow(sum[i] + (more ? widen(more[i]) : 0.0f));
                        }
                    }
                }
            }
        }
        _tile_release();
    }
}
