/* SPDX-License-Identifier: Apache-2.0
 *
 * The `quire` program. Everything is in the library, so that tests can run it in place.
 */
#include "commands.h"

int main(int argc, char **argv)
{
    return qr_commands_main(argc, argv, stdout, stderr);
}
