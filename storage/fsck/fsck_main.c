/* SPDX-License-Identifier: Apache-2.0
 *
 * quire-fsck: reads the line, runs the check, ends with a code. Must not know what
 * a check looks at.
 */
#include "fsck.h"

#include <getopt.h>
#include <unistd.h>

#include "storage/base/log.h"

static void usage(FILE *out)
{
    (void)fputs(
        "usage: quire fsck [OPTION...] DIR...\n\n"
        "Check a disk store that no server has open: every page against its checksum and its\n"
        "record, the index against the slab files, sessions against their pages, the tail "
        "log.\n"
        "DIR: the store's folders, all of them, in the order of the server's configuration.\n\n"
        "  --repair         drop from the index what cannot be proved right, and say what;\n"
        "                   nothing that is right is touched\n"
        "  --quick          do not read the pages\n"
        "  --allow-missing  check without devices that are absent, but for the first\n"
        "  --all            print every finding, not just the first 100 of a kind\n"
        "  --json           one JSON object instead of lines\n"
        "  --quiet          only what is wrong\n\n"
        "Exit code: 0 sound, 1 could not be checked, 2 wrong line, 3 a server has it open,\n"
        "4 damage was found (also when --repair dropped it; run it again to be sure).\n",
        out);
}

enum option_code {
    OPT_REPAIR = 1,
    OPT_QUICK,
    OPT_MISSING,
    OPT_ALL,
    OPT_JSON,
    OPT_QUIET,
    OPT_HELP
};

/* False: a wrong option, or help; the code to end with is set then. */
static bool parse(struct qr_fsck *f, int argc, char **argv, int *code_out)
{
    static const struct option known[] = {{"repair", no_argument, NULL, OPT_REPAIR},
                                          {"quick", no_argument, NULL, OPT_QUICK},
                                          {"allow-missing", no_argument, NULL, OPT_MISSING},
                                          {"all", no_argument, NULL, OPT_ALL},
                                          {"json", no_argument, NULL, OPT_JSON},
                                          {"quiet", no_argument, NULL, OPT_QUIET},
                                          {"help", no_argument, NULL, OPT_HELP},
                                          {NULL, 0, NULL, 0}};
    int found;

    *code_out = QR_FSCK_USAGE;
    while ((found = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        f->check.repair = f->check.repair || found == OPT_REPAIR;
        f->check.quick = f->check.quick || found == OPT_QUICK;
        f->check.allow_missing = f->check.allow_missing || found == OPT_MISSING;
        f->all = f->all || found == OPT_ALL;
        f->json = f->json || found == OPT_JSON;
        f->quiet = f->quiet || found == OPT_QUIET;
        if (found == OPT_HELP || found == 'h') {
            usage(stdout);
            *code_out = QR_FSCK_SOUND;
            return false;
        }
        if (found == '?') { /* getopt has said what is wrong */
            (void)fputs("Try 'quire fsck --help'.\n", stderr);
            return false;
        }
    }
    for (; optind < argc && f->check.count < QR_DISK_DEVICES_MAX; optind++)
        f->check.folders[f->check.count++] = argv[optind];
    if (f->check.count == 0 || optind < argc) {
        fprintf(stderr, "quire fsck: %s; Try 'quire fsck --help'.\n",
                optind < argc ? "more than 16 folders" : "no folder given");
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct qr_fsck fsck;
    struct qr_error e = {0};
    int code;

    fsck.out = stdout;
    fsck.terminal = isatty(STDERR_FILENO);
    if (!parse(&fsck, argc, argv, &code))
        return code;
    /* What the parts say by themselves is said again, better, by the findings. */
    qr_log_configure(QR_LOG_ERROR, QR_LOG_TEXT, STDERR_FILENO);
    if (fsck.json)
        fsck.findings = cJSON_CreateArray();
    fsck.check.found = qr_fsck_found;
    fsck.check.progress = qr_fsck_progress;
    fsck.check.is_model = qr_fsck_is_model;
    fsck.check.arg = &fsck;
    const quire_status status = qr_disk_check(&fsck.check, &fsck.result, &e);
    code = qr_fsck_conclude(&fsck, status, &e);
    if (fflush(stdout) != 0 && code == QR_FSCK_SOUND)
        code = QR_FSCK_FAILED;
    return code;
}
