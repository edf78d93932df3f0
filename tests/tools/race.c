/* SPDX-License-Identifier: Apache-2.0
 *
 * A program with a data race, so that the tsan build can show that it would see one: its test
 * passes when ThreadSanitizer ends it with a report. Must not be linked into anything.
 */
#include <pthread.h>
#include <stdio.h>

static unsigned counted;

static void *count(void *arg)
{
    for (unsigned i = 0; i < 100000; i++)
        counted++;
    return arg;
}

int main(void)
{
    pthread_t other;

    if (pthread_create(&other, NULL, count, NULL))
        return 0; /* no report: fails the test */
    count(NULL);
    pthread_join(other, NULL);
    printf("counted %u, and nobody complained\n", counted);
    return 0;
}
