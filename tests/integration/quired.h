/* SPDX-License-Identifier: Apache-2.0
 *
 * A real quired on a socket in a folder of its own, for one test: start with
 * flags, signal, wait, clean up.
 */
#ifndef QR_TEST_QUIRED_H
#define QR_TEST_QUIRED_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"

struct quired {
    pid_t pid;
    char folder[64];
    char target[96];     /* "unix:<folder>/s" */
    char output[8192];   /* quired_run: everything it printed */
    char addresses[512]; /* as written to --ready-fd */
};

static inline void quired_exec(const char *const *flags, const char *const *environment)
{
    const char *argv[40] = {NULL};
    char program[512];
    size_t n = 0;

    snprintf(program, sizeof(program), "%s/server/quired", getenv("QUIRE_BINARY"));
    argv[n++] = program;
    for (size_t i = 0; flags && flags[i]; i++)
        argv[n++] = flags[i];
    for (size_t i = 0; environment && environment[i]; i++)
        putenv((char *)(uintptr_t)environment[i]);
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static inline void quired_folder(struct quired *q)
{
    memset(q, 0, sizeof(*q));
    snprintf(q->folder, sizeof(q->folder), "/tmp/quire-test-XXXXXX");
    assert_non_null(mkdtemp(q->folder));
    snprintf(q->target, sizeof(q->target), "unix:%s/s", q->folder);
}

static inline void drain_pipe(int fd, char *out, size_t size)
{
    size_t n = 0;

    for (ssize_t got; n < size - 1 && (got = read(fd, out + n, size - 1 - n)) != 0;)
        if (got > 0)
            n += (size_t)got;
        else
            assert_int_equal(errno, EINTR);
    out[n] = 0;
}

/** Start in q->folder (quired_folder) with these flags besides --listen, and wait until it
 * serves. */
static inline void quired_start(struct quired *q, const char *const *flags)
{
    const char *all[32] = {"--listen",   q->target, "--memory",    "128MiB",
                           "--ready-fd", "9",       "--log-level", "warn"};
    int ready[2];

    for (size_t n = 0; all[n] || (flags && *flags); n++)
        if (!all[n])
            all[n] = *flags++;
    assert_ok(pipe2(ready, O_CLOEXEC));
    q->pid = fork();
    assert_true(q->pid >= 0);
    if (q->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no server behind */
        if (ready[1] == 9) /* a dup2 onto itself would leave it to be closed by exec */
            (void)fcntl(9, F_SETFD, 0);
        else
            dup2(ready[1], 9);
        quired_exec(all, NULL);
    }
    close(ready[1]);
    drain_pipe(ready[0], q->addresses, sizeof(q->addresses));
    close(ready[0]);
    assert_non_null(strstr(q->addresses, q->target));
}

/** Wait for its end; its exit status, or 1000 + signal. */
static inline int quired_wait(struct quired *q)
{
    int status = 0;

    assert_int_equal(waitpid(q->pid, &status, 0), q->pid);
    q->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/** SIGTERM; it must end well. */
static inline void quired_stop(struct quired *q)
{
    assert_ok(kill(q->pid, SIGTERM));
    assert_int_equal(quired_wait(q), 0);
}

static inline void quired_clean(struct quired *q)
{
    char path[96];

    snprintf(path, sizeof(path), "%s/s", q->folder);
    (void)unlink(path);
    assert_ok(rmdir(q->folder));
}

/** Run to its end with these flags and environment; what it printed is in q->output. */
static inline int quired_run(struct quired *q, const char *const *flags,
                             const char *const *environment)
{
    int out[2];

    assert_ok(pipe2(out, O_CLOEXEC));
    q->pid = fork();
    assert_true(q->pid >= 0);
    if (q->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        dup2(out[1], 2);
        quired_exec(flags, environment);
    }
    close(out[1]);
    drain_pipe(out[0], q->output, sizeof(q->output));
    close(out[0]);
    return quired_wait(q);
}

#endif
