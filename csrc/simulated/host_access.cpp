#include "simulated/host_access.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "simulated/device.h"

namespace staticrt::simulated {
namespace {

struct sigaction former;

// In a signal handler: nothing here allocates, throws or waits.
void report(alloc::Addr address) {
  for (int index = 0; index < device_count(); ++index) {
    const alloc::SimDriver& driver = device_at(index).driver();
    if (!driver.owns(address)) continue;
    char what[256] = "memory that another thread is using just now";
    (void)driver.describe(address, what, sizeof what);
    char text[640];
    const int size = std::snprintf(
        text, sizeof text,
        "staticrt: the host used address 0x%llx of sim:%d, which only work of the device may: %s.\n"
        "  fix: copy the tensor to the host first (tensor.cpu()), or run an operator on it\n",
        static_cast<unsigned long long>(address), index, what);
    if (size > 0) (void)!write(STDERR_FILENO, text, std::strlen(text));
    return;
  }
}

void on_signal(int signal, siginfo_t* info, void* context) {
  // A signal that was sent by a process has no address.
  if (info && (info->si_code == SEGV_MAPERR || info->si_code == SEGV_ACCERR))
    report(reinterpret_cast<alloc::Addr>(info->si_addr));
  if (former.sa_flags & SA_SIGINFO) {
    former.sa_sigaction(signal, info, context);
  } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
    former.sa_handler(signal);
  } else {
    // The access is repeated when this returns, and then ends the process; a signal that was sent is sent
    // again.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGSEGV, &standard, nullptr);
    if (!info || info->si_code <= 0) raise(signal);
  }
}

}  // namespace

void report_host_accesses() {
  struct sigaction mine = {};
  mine.sa_sigaction = &on_signal;
  mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&mine.sa_mask);
  sigaction(SIGSEGV, &mine, &former);
}

}  // namespace staticrt::simulated
