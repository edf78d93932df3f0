/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk tier beside a raw O_DIRECT io_uring program in the same folder, same
 * sizes, same run, in turns: durable appends, reads in order and at random, write
 * amplification, and the time to open an index. Prints ratios; README.md has the
 * figures. Works in a folder of its own below DIR and removes it.
 *
 * usage: disk [--dir DIR] [--mib MIB] [--entries N] [--ram N]   (0: leave that part out)
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "disk_bench.h"
#include "storage/base/log.h"

#define ROUNDS 3u

double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "disk: failed: %s\n", what);
    exit(1);
}

void *must_alloc_aligned(size_t bytes)
{
    void *p = aligned_alloc(QR_DISK_BLOCK, bytes);
    must(p != NULL, "memory");
    memset(p, 0x5a, bytes);
    return p;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* Bytes that this process caused to be written to devices. */
static uint64_t device_bytes(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    char line[128];
    unsigned long long bytes = 0;

    must(file != NULL, "/proc/self/io");
    while (fgets(line, sizeof(line), file))
        (void)sscanf(line, "write_bytes: %llu", &bytes);
    (void)fclose(file);
    return bytes;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), compare);
    return values[ROUNDS / 2];
}

static void shuffle(uint32_t *order, uint32_t n)
{
    uint64_t x = 42;

    for (uint32_t i = n - 1; i > 0; i--) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint32_t j = (uint32_t)((x >> 33) % (i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void measure_writes(struct raw *raw, struct ours *ours, const struct shape *shape,
                           uint32_t appenders, uint32_t first_round)
{
    uint8_t *page = must_alloc_aligned(shape->page_bytes);
    double theirs[ROUNDS], mine[ROUNDS], ratio[ROUNDS];
    const double bytes = (double)shape->pages * (double)shape->page_bytes;
    uint64_t device = 0;

    for (uint32_t r = 0; r < ROUNDS; r++) {
        theirs[r] = raw_write(raw, first_round + r, page);
        const uint64_t before = device_bytes();
        mine[r] = ours_write(ours, shape, first_round + r, page, appenders);
        device += device_bytes() - before;
        ratio[r] = theirs[r] / mine[r];
    }
    printf("  append, batch %2u, %u at once: %.2fx raw (raw %.2f GB/s), write amplification "
           "%.4f\n",
           shape->batch, appenders, median(ratio), bytes / median(theirs) * 1e-9,
           (double)device / (bytes * ROUNDS));
    free(page);
}

static void measure_reads(struct raw *raw, struct ours *ours, struct shape shape, bool random,
                          bool deadline)
{
    uint32_t *order = calloc(shape.pages, sizeof(*order));
    double theirs[ROUNDS], ratio[ROUNDS];

    must(order != NULL, "memory");
    for (uint32_t i = 0; i < shape.pages; i++)
        order[i] = i;
    if (random)
        shuffle(order, shape.pages);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        theirs[r] = raw_read(raw, r, order);
        ratio[r] = theirs[r] / ours_read(ours, &shape, r, order, deadline);
    }
    printf("  read, depth %u, %s, %s: %.2fx raw (raw %.2f GB/s)\n", shape.batch,
           random ? "random  " : "in order", deadline ? "with deadlines" : "in place      ",
           median(ratio),
           (double)shape.pages * (double)shape.page_bytes / median(theirs) * 1e-9);
    free(order);
}

static void measure_shape(const char *folder, size_t page_bytes, uint64_t total_bytes)
{
    static const uint32_t batches[] = {16, 64};

    printf("pages of %zu KiB\n", page_bytes >> 10);
    for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
        struct shape shape = {.page_bytes = page_bytes, .batch = batches[b]};
        struct ours ours;
        shape.pages = (uint32_t)(total_bytes / ROUNDS / page_bytes / 64 * 64);
        struct raw *raw = raw_open(folder, &shape, 2 * ROUNDS);
        ours_open(&ours, folder, &shape, 2 * ROUNDS);
        measure_writes(raw, &ours, &shape, 1, 0);
        measure_writes(raw, &ours, &shape, 4, ROUNDS);
        if (b == 0) {
            shape.batch = 8;
            measure_reads(raw, &ours, shape, false, false);
            measure_reads(raw, &ours, shape, true, false);
            measure_reads(raw, &ours, shape, false, true);
        }
        ours_close(&ours);
        raw_close(&raw);
        char store[600];
        (void)snprintf(store, sizeof(store), "%s/store", folder);
        (void)nftw(store, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
}

int main(int argc, char **argv)
{
    const char *dir = ".";
    uint64_t mib = 768;
    uint32_t entries = 1000000;
    uint64_t ram = 1000000;
    char folder[512];

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--dir") == 0)
            dir = argv[i + 1];
        else if (strcmp(argv[i], "--mib") == 0)
            mib = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--entries") == 0)
            entries = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--ram") == 0)
            ram = strtoull(argv[i + 1], NULL, 10);
        else
            must(false, "usage: disk [--dir DIR] [--mib MIB] [--entries N] [--ram N]");
    }
    qr_log_configure(QR_LOG_WARN, QR_LOG_TEXT, 2);
    (void)snprintf(folder, sizeof(folder), "%s/quire-bench-XXXXXX", dir);
    must(mkdtemp(folder) != NULL, "make a folder below DIR");
    if (mib > 0) {
        measure_shape(folder, 96u << 10, mib << 20);
        measure_shape(folder, 384u << 10, mib << 20);
    }
    if (entries > 0)
        measure_index(folder, entries);
    for (uint64_t pages = 100000; pages <= ram; pages *= 10)
        measure_ram(folder, pages);
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}
