/* Lets a User-Mode Linux run on a CPU with more registers than it knows.
 *
 * UML before 6.13 keeps 2,696 octets of registers for each process of its guest: up to AVX-512. To set a process's
 * registers the kernel wants all that the CPU has, 11,008 octets where there is AMX, and answers EFAULT to less. Loaded
 * ahead of libc, this gives it the rest as zeros: registers that no guest has touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>

#define GETREGSET 0x4204L
#define SETREGSET 0x4205L
#define NT_X86_XSTATE 0x202L

typedef long (*ptrace_function)(long, long, void *, void *);

static char whole[64 << 10];

long ptrace(long request, long pid, void *address, void *data)
{
    static ptrace_function real;
    static size_t size;
    struct iovec all = {whole, sizeof whole};
    const struct iovec *given = data;

    if (!real)
        real = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
    if (request != SETREGSET || address != (void *)NT_X86_XSTATE)
        return real(request, pid, address, data);
    if (!size) {
        if (real(GETREGSET, pid, address, &all))
            return -1;
        size = all.iov_len;
        memset(whole, 0, sizeof whole);
    }
    if (given->iov_len > size) {
        errno = EFAULT;
        return -1;
    }
    memcpy(whole, given->iov_base, given->iov_len);
    all.iov_len = size;
    return real(request, pid, address, &all);
}
