/* SPDX-License-Identifier: Apache-2.0
 *
 * Where RocksDB writes its own text log: not beside the data. When that file system
 * is full, the first line that cannot be written is forgotten, and the second ends
 * the process by an assertion of RocksDB's (Debian builds it with them). What the
 * log says we hear through its interface anyway. So it goes to shared memory.
 */
#include "disk_index.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/page.h"

/* Ours alone, whoever else may write to the folder above. */
static bool make_own(const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return false;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & 077) == 0;
}

bool qr_disk_index_log_folder(const char *index_path, char out[QR_DISK_LOG_FOLDER_BYTES])
{
    static const char *const places[] = {"/dev/shm", "/run/quire", "/tmp"};
    const uint64_t name = qr_checksum(index_path, strlen(index_path));
    struct stat index, place;
    const bool known = stat(index_path, &index) == 0;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (stat(places[i], &place) != 0 || (known && place.st_dev == index.st_dev))
            continue;
        (void)snprintf(out, QR_DISK_LOG_FOLDER_BYTES, "%s/quire-index-%u-%016" PRIx64,
                       places[i], (unsigned)geteuid(), name);
        if (make_own(out))
            return true;
    }
    return false;
}
