/* SPDX-License-Identifier: Apache-2.0
 *
 * `quire fsck`: becomes quire-fsck, which stands beside this program or in PATH.
 * It is apart because it needs the store's libraries, and a client does not.
 */
#include "commands.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "quire-fsck"

/* The folder of this program and the name. */
static bool beside(char out[PATH_MAX])
{
    const ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - sizeof(PROGRAM) - 1);

    if (n <= 0)
        return false;
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        return false;
    memcpy(slash + 1, PROGRAM, sizeof(PROGRAM));
    return true;
}

int qr_cmd_fsck(struct qr_cli *cli, int argc, char **argv)
{
    static char name[] = "quire fsck"; /* what getopt calls it */
    static char json[] = "--json", quiet[] = "--quiet";
    char path[PATH_MAX];
    char **line = calloc((size_t)argc + 3, sizeof(*line)); /* and a NULL */
    int n = 0;

    if (line == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for a line of %d words", argc);
    line[n++] = name;
    if (cli->json)
        line[n++] = json;
    if (cli->quiet)
        line[n++] = quiet;
    for (int i = 1; i < argc; i++)
        line[n++] = argv[i];
    (void)fflush(NULL);
    if (beside(path))
        (void)execv(path, line);
    (void)execvp(PROGRAM, line);
    const int error = errno;
    free(line);
    return qr_cli_fail(cli, QUIRE_ENOTFOUND,
                       "cannot run %s: %s; it comes with the server and belongs beside quire, "
                       "or in a folder of PATH",
                       PROGRAM, strerror(error));
}
