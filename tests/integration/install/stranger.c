/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest program of a user: C and C++ alike, with nothing but the installed header.
 */
#include <quire.h>
#include <stdio.h>

int main(void)
{
    struct quire_client_options options;
    quire_client_options_init(&options);
    options.connect_ms = 50;
    quire_client *client = NULL;
    const quire_status status = quire_client_open("unix:/nowhere", &options, &client);
    printf("%s %s\n", quire_version(), status == QUIRE_OK ? "opened" : "refused");
    quire_client_close(&client);
    return status == QUIRE_OK;
}
