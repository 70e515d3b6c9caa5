/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plugin.c - a backend that is a module: where it is looked for, and whether it fits this library. Loaded when a
 * context asks for its device, so that a machine without the libraries behind it runs all the rest.
 *
 * Looked for in: LKS_PLUGIN_DIR alone if that is set; else beside the library (in DIR/lockstep, DIR, DIR/.libs, where
 * DIR holds liblockstep or the program it is linked into), then where make install put it.
 */
#define _GNU_SOURCE
#include "ctx/plugin.h"
#include "tensor/tensor.h"
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef LKSI_PKGLIBDIR
#define LKSI_PKGLIBDIR "/usr/lib/lockstep"
#endif

static void make_room(lksi_base *b)
{
    lksi_device *d = ((lks_context *)b)->dev; /* a context is a base */
    if (d) lksi_device_make_room(d);
}

static const lksi_host services = {
    .rows = lksi_rows,
    .fail = lksi_fail,
    .log = lksi_log,
    .alloc = lksi_alloc,
    .free = lksi_free,
    .alloc_must_fail = lksi_alloc_must_fail,
    .shape_text = lksi_shape_text,
    .make_room = make_room,
};

static int there(char *path, const char *dir, const char *below, const char *name)
{
    int n = snprintf(path, LKSI_TEXT, "%s%s/liblockstep_%s.so", dir, below, name);
    return n < LKSI_TEXT && access(path, R_OK) == 0;
}

static int find(const char *name, char *path, char *why)
{
    const char *forced = getenv("LKS_PLUGIN_DIR");
    if (forced && *forced) {
        if (there(path, forced, "", name)) return 1;
        snprintf(why, LKSI_TEXT, "%s: %s (LKS_PLUGIN_DIR)", path, strerror(errno));
        return 0;
    }
    Dl_info self;
    char dir[LKSI_TEXT] = "";
    if (dladdr((const void *)&services, &self) && self.dli_fname) {
        snprintf(dir, sizeof dir, "%s", self.dli_fname);
        char *slash = strrchr(dir, '/');
        if (slash) *slash = 0;
        else snprintf(dir, sizeof dir, ".");
        if (there(path, dir, "/lockstep", name) || there(path, dir, "", name) || there(path, dir, "/.libs", name))
            return 1;
    }
    if (there(path, LKSI_PKGLIBDIR, "", name)) return 1;
    snprintf(why, LKSI_TEXT, "liblockstep_%s.so is neither beside the library (in %.900s) nor in %s", name, dir,
             LKSI_PKGLIBDIR);
    return 0;
}

/* dlopen maps a file that was cut off without a word, and the first look behind its end kills the process. So: does the
 * file hold all that its program headers name? What is no ELF file of this machine is left for dlopen to refuse. */
static int whole(const char *path)
{
    ElfW(Ehdr) head;
    ElfW(Phdr) part;
    struct stat st;
    FILE *f = fopen(path, "rb");
    int good = 1;
    if (!f) return 1;
    if (!fstat(fileno(f), &st) && fread(&head, sizeof head, 1, f) == 1 && !memcmp(head.e_ident, ELFMAG, SELFMAG) &&
        head.e_phentsize == sizeof part)
        for (int i = 0; good && i < head.e_phnum; i++)
            good = !fseeko(f, (off_t)(head.e_phoff + (unsigned)i * sizeof part), SEEK_SET) &&
                   fread(&part, sizeof part, 1, f) == 1 &&
                   (part.p_type != PT_LOAD || (part.p_filesz <= (uint64_t)st.st_size &&
                                               part.p_offset <= (uint64_t)st.st_size - part.p_filesz));
    fclose(f);
    return good;
}

const lksi_plugin *lksi_plugin_load(const char *name, char *path, char *why)
{
    path[0] = why[0] = 0;
    if (!find(name, path, why)) return NULL;
    if (!whole(path)) {
        snprintf(why, LKSI_TEXT, "%s cannot be loaded: it is cut off; install it again", path);
        return NULL;
    }
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!module) {
        const char *text = dlerror(); /* names the library that is missing */
        snprintf(why, LKSI_TEXT, "%s cannot be loaded: %s", path, text ? text : "no reason given");
        return NULL;
    }
    char symbol[64];
    snprintf(symbol, sizeof symbol, "lksi_plugin_%s", name);
    const lksi_plugin *p = dlsym(module, symbol), want = {LKSI_PLUGIN_FACTS};
    if (!p) {
        snprintf(why, LKSI_TEXT, "%s is not a module of Lockstep: it has no %s", path, symbol);
        return NULL;
    }
    if (p->abi != want.abi || p->size != want.size) {
        snprintf(why, LKSI_TEXT,
                 "%s was built for another version of Lockstep (interface %d of %d bytes, here %d of %d)", path, p->abi,
                 p->size, want.abi, want.size);
        return NULL;
    }
    if (strcmp(p->version, want.version) || p->host_size != want.host_size || p->backend_size != want.backend_size ||
        p->view_size != want.view_size || p->args_size != want.args_size || p->row_size != want.row_size ||
        p->ops != want.ops) {
        snprintf(why, LKSI_TEXT, "%s is of another build of Lockstep (%s with %d ops, here %s with %d)", path,
                 p->version, p->ops, want.version, want.ops);
        return NULL;
    }
    p->attach(&services);
    return p;
}
