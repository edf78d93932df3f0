/* SPDX-License-Identifier: Apache-2.0
 *
 * A quired of the benchmark's own: started in a scratch folder, on a free TCP
 * port and a unix socket, stopped and cleaned up at the end.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net_bench.h"

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void run_server(const struct net_server *server, int ready)
{
    const char *binary = getenv("QUIRE_BINARY");
    char program[512], listen[256], fd[16];

    snprintf(program, sizeof(program), "%s/server/quired", binary ? binary : "build/release");
    snprintf(listen, sizeof(listen), "127.0.0.1:0,%s", server->socket);
    snprintf(fd, sizeof(fd), "%d", ready);
    execl(program, program, "--listen", listen, "--memory", "512MiB", "--ready-fd", fd,
          (char *)NULL);
    fail(program);
}

/* "127.0.0.1:PORT" among the addresses that the server says it listens on. */
static void find_tcp(const char *addresses, char *out, size_t size)
{
    const char *at = strstr(addresses, "127.0.0.1:");
    if (!at)
        fail("no TCP address");
    snprintf(out, size, "%.*s", (int)strcspn(at, ", \n"), at);
}

void net_server_start(struct net_server *server)
{
    int ready[2];
    char addresses[512];

    snprintf(server->folder, sizeof(server->folder), "/tmp/quire-bench-XXXXXX");
    if (!mkdtemp(server->folder) || pipe(ready))
        fail(server->folder);
    snprintf(server->socket, sizeof(server->socket), "unix:%s/s", server->folder);
    server->pid = fork();
    if (server->pid < 0)
        fail("fork");
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed run leaves no server behind */
        close(ready[0]);
        run_server(server, ready[1]);
    }
    close(ready[1]);
    const ssize_t n = read(ready[0], addresses, sizeof(addresses) - 1);
    if (n <= 0) {
        fprintf(stderr, "the server did not start\n");
        exit(1);
    }
    addresses[n] = '\0';
    close(ready[0]);
    find_tcp(addresses, server->tcp, sizeof(server->tcp));
}

void net_server_stop(struct net_server *server)
{
    kill(server->pid, SIGTERM);
    waitpid(server->pid, NULL, 0);
    unlink(server->socket + strlen("unix:"));
    rmdir(server->folder);
}

quire_client *net_connect(const struct net_server *server, int over, bool local,
                          uint32_t threads)
{
    quire_client *client;
    struct quire_client_options options;
    char why[256];

    quire_client_options_init(&options);
    options.threads = threads;
    options.local = local;
    if (quire_client_open(over ? server->socket : server->tcp, &options, &client)) {
        fprintf(stderr, "%s\n", quire_last_error()->text);
        exit(1);
    }
    if (quire_client_is_local(client, why, sizeof(why)) != local) {
        fprintf(stderr, "shared memory is not used: %s\n", why);
        exit(1);
    }
    return client;
}
