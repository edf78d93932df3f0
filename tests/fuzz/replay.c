/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target once over each file of the corpus folders given, for builds without
 * libFuzzer: what a fuzzer once found stays found by every compiler and sanitizer.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An exact-size copy, so that a sanitizer sees the first byte read past the end. */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        return 1;
    }
    static uint8_t buffer[1 << 24];
    const size_t size = fread(buffer, 1, sizeof(buffer), file);
    fclose(file);
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        return 1;
    memcpy(copy, buffer, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 0;
}

static int replay_folder(const char *path, unsigned *count)
{
    DIR *folder = opendir(path);
    if (!folder) {
        fprintf(stderr, "replay: %s: %s; keep at least one input there\n", path,
                strerror(errno));
        return 1;
    }
    int failed = 0;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        char name[4096];
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        failed |= replay_file(name);
        ++*count;
    }
    closedir(folder);
    return failed;
}

int main(int argc, char **argv)
{
    unsigned count = 0;
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= replay_folder(argv[i], &count);
    printf("replay: %u inputs\n", count);
    return failed || count == 0;
}
