/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nodlclose.c - keeps plug-ins of MPI loaded, so that memory checkers can name their frames. Linked into the test
 * programs of sanitizer and valgrind builds only.
 */

int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
