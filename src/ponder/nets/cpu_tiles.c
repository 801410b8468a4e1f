/* Products of rows with a matrix in bfloat16 by the matrix units of x86 processors (AMX). Only where they are: elsewhere
 * this file does not compile.
 *
 * A matrix is packed as tiles of 16 outputs and 32 inputs, [outputs / 16][inputs / 32][16 pairs of inputs][16 outputs][2],
 * in the order in which they are read. Sums are float32.
 */
#define BFLOAT16
#include "cpu_numbers.h"
#ifndef __AMX_BF16__
#error "no matrix units for bfloat16"
#endif
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE 16   /* rows, and outputs */
#define DEPTH 32  /* inputs */
#define MAX_TILES 4 /* of rows at a time */

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

/* Sums of `tiles` times 16 rows with 16 outputs. */
INLINE void multiply_tiles(const int tiles, const number *const *x, int64_t inputs, const number *matrix, float *sums) {
    int64_t stride = inputs * (int64_t)sizeof(number);
    _tile_zero(0);
    if (tiles > 1) _tile_zero(1);
    if (tiles > 2) _tile_zero(2);
    if (tiles > 3) _tile_zero(3);
    for (int64_t i = 0; i < inputs; i += DEPTH, matrix += DEPTH * TILE) {
        _tile_loadd(4, matrix, 64);
        _tile_loadd(5, x[0] + i, stride);
        _tile_dpbf16ps(0, 5, 4);
        if (tiles > 1) {
            _tile_loadd(6, x[1] + i, stride);
            _tile_dpbf16ps(1, 6, 4);
        }
        if (tiles > 2) {
            _tile_loadd(7, x[2] + i, stride);
            _tile_dpbf16ps(2, 7, 4);
        }
        if (tiles > 3) {
            _tile_loadd(5, x[3] + i, stride);
            _tile_dpbf16ps(3, 5, 4);
        }
    }
    _tile_stored(0, sums, 64);
    if (tiles > 1) _tile_stored(1, sums + 256, 64);
    if (tiles > 2) _tile_stored(2, sums + 512, 64);
    if (tiles > 3) _tile_stored(3, sums + 768, 64);
}

/* out[rows, outputs] = x[rows, inputs] times the matrix, plus a bias unless it is null. last: x's rows of the last tile,
 * padded to 16, or null where rows is a multiple of 16. */
void multiply(const number *x, const number *last, int64_t rows, int64_t inputs, const number *matrix, int64_t outputs,
              const number *bias, number *out, int64_t threads) {
    int64_t panels = outputs / TILE, row_tiles = (rows + TILE - 1) / TILE;
#pragma omp parallel num_threads(threads)
    {
        float sums[MAX_TILES * TILE * TILE] __attribute__((aligned(64)));
        shape_tiles();
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < panels; panel++) {
            const number *own = matrix + panel * TILE * inputs;
            for (int64_t first = 0; first < row_tiles; first += MAX_TILES) {
                int64_t tiles = row_tiles - first < MAX_TILES ? row_tiles - first : MAX_TILES;
                const number *starts[MAX_TILES];
                for (int64_t i = 0; i < tiles; i++)
                    starts[i] = last && first + i == row_tiles - 1 ? last : x + (first + i) * TILE * inputs;
                if (tiles == 4) multiply_tiles(4, starts, inputs, own, sums);
                if (tiles == 3) multiply_tiles(3, starts, inputs, own, sums);
                if (tiles == 2) multiply_tiles(2, starts, inputs, own, sums);
                if (tiles == 1) multiply_tiles(1, starts, inputs, own, sums);
                int64_t filled = rows - first * TILE < tiles * TILE ? rows - first * TILE : tiles * TILE;
                for (int64_t row = 0; row < filled; row++) {
                    number *to = out + (first * TILE + row) * outputs + panel * TILE;
                    for (int i = 0; i < TILE; i++)
                        to[i] = narrow(sums[row * TILE + i] + (bias ? widen(bias[panel * TILE + i]) : 0.0f));
                }
            }
        }
        _tile_release();
    }
}
