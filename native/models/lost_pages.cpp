// Pages of mapped files that can no longer be read.
//
// To read what was cut off from a mapped file, or what its disk no longer gives, raises SIGBUS,
// which ends the process.  In a guarded file zeros take the place of such a page and of all that
// follow it, and it is noted: whoever has computed from the file asks afterwards whether it was
// whole.
#include <array>
#include <atomic>
#include <cstdint>

#include "bind.hpp"

#if (defined(__unix__) || defined(__APPLE__)) && !defined(__EMSCRIPTEN__)
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#define ALEATOR_HAS_SIGBUS
#endif

namespace aleator::lost_pages {
namespace {

// What a signal handler reads, which may lock nothing.
struct Range {
  std::atomic<bool> taken = false, lost = false;
  std::atomic<uintptr_t> begin = 0, end = 0;  // no addresses while end is 0
};

std::array<Range, 16384> ranges;

#ifdef ALEATOR_HAS_SIGBUS
struct sigaction before;  // what handled it until now
uintptr_t page_size = 4096;

bool put_zeros(uintptr_t address) {
  for (Range& each : ranges) {
    const uintptr_t end = each.end.load(), page = address & ~(page_size - 1);
    if (address >= end || address < each.begin.load()) continue;
    if (each.end.load() != end) continue;  // the beginning was another file's
    each.lost = true;                      // before any thread can read zeros
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, flags, -1, 0) != MAP_FAILED;
  }
  return false;
}

void handle(int number, siginfo_t* about, void* context) {
  const int error = errno;
  // Not where another process has sent it.
  const bool done = about->si_code > 0 && put_zeros(reinterpret_cast<uintptr_t>(about->si_addr));
  errno = error;
  // A handler that was installed later (LLVM's, of Triton) puts this one back and raises the signal
  // anew, without an address: if memory was its cause, it comes with one. Handlers that go on
  // giving it to each other would never end.
  static std::atomic<int> raised = 0;
  if (done) raised = 0;
  const bool own = about->si_code <= 0 && about->si_pid == getpid();
  if (done || (own && raised++ == 0)) return;
  if (own) before = {};
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, about, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(number);
  sigaction(number, &before, nullptr);
  raise(number);  // once this handler has returned
}

// A handler that was installed later comes first, and may end the process (Python's faulthandler)
// or raise the signal for ever (LLVM's, of Triton, where something puts it back after LLVM is done
// with it): with each file that is guarded this one goes before it.
void install() {
  struct sigaction now = {}, own = {};
  if (sigaction(SIGBUS, nullptr, &now) || now.sa_sigaction == handle) return;
  page_size = uintptr_t(sysconf(_SC_PAGESIZE));
  own.sa_sigaction = handle;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&own.sa_mask);
  before = now;
  sigaction(SIGBUS, &own, nullptr);
}
#else
void install() {}
#endif

// Guards a mapped file as long as it lives; beyond so many files it does nothing.
class PageGuard {
 public:
  explicit PageGuard(const Bytes& data) {
    install();
    for (Range& each : ranges) {
      if (each.taken.exchange(true)) continue;
      each.lost = false;
      each.begin = reinterpret_cast<uintptr_t>(data.data());
      each.end = each.begin + data.size();
      range_ = &each;
      return;
    }
  }
  ~PageGuard() {
    if (!range_) return;
    range_->end = 0;
    range_->taken = false;
  }
  PageGuard(const PageGuard&) = delete;
  PageGuard& operator=(const PageGuard&) = delete;
  bool lost() const { return range_ && range_->lost; }

 private:
  Range* range_ = nullptr;
};

}  // namespace

ALEATOR_BIND(page_guard) {
  nb::class_<PageGuard>(m, "PageGuard",
                        "While it lives, zeros take the place of pages of a mapped file that "
                        "cannot be read; elsewhere these end the process.")
      .def(nb::init<const Bytes&>(), "data"_a, "data: the whole mapping, from a page's start on.")
      .def_prop_ro("lost", &PageGuard::lost, "Whether pages were lost.");
}

}  // namespace aleator::lost_pages
