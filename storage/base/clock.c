/* SPDX-License-Identifier: Apache-2.0
 *
 * Not written yet.
 */
extern int quire_not_empty;
