// For a module that is built with glibc 2.34 or newer and runs with 2.28 too (ALEATOR_OLD_GLIBC).
//
// The linker takes the newest version of each function.  For functions that only got a new version,
// a hidden function of the same name goes on to the oldest one; what old libraries do not have is
// written here.  tools/build_wheel.py has auditwheel look whether anything newer is left.
#include <pthread.h>
#include <time.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#define GO_ON "jmp "
#define FAR "@PLT"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#define GO_ON "b "
#define FAR ""
#else
#error "which version of glibc is the first for this processor?"
#endif

#define OLD(name)                                                          \
  __asm__(".symver old_" #name ", " #name "@" OLDEST                       \
          "\n"                                                             \
          ".text\n"                                                        \
          ".globl " #name                                                  \
          "\n"                                                             \
          ".hidden " #name                                                 \
          "\n"                                                             \
          ".type " #name ", %function\n" #name ": " GO_ON "old_" #name FAR \
          "\n"                                                             \
          ".size " #name ", . - " #name "\n")

OLD(exp);
OLD(log);
OLD(log2);
OLD(pow);
OLD(pthread_create);
OLD(pthread_getspecific);
OLD(pthread_join);
OLD(pthread_key_create);
OLD(pthread_once);
OLD(pthread_setspecific);

extern "C" {

// "Perhaps several threads": then reference counts are atomic.
__attribute__((visibility("hidden"))) extern char single_threaded __asm__("__libc_single_threaded");
char single_threaded = 0;

__attribute__((visibility("hidden"))) int wait_by_clock(
    pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
    const timespec* until) __asm__("pthread_cond_clockwait");
int wait_by_clock(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                  const timespec* until) {
  constexpr long second = 1'000'000'000;
  timespec now, today;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &today);
  timespec end{today.tv_sec + until->tv_sec - now.tv_sec,
               today.tv_nsec + until->tv_nsec - now.tv_nsec};
  while (end.tv_nsec < 0) end.tv_nsec += second, --end.tv_sec;
  while (end.tv_nsec >= second) end.tv_nsec -= second, ++end.tv_sec;
  return pthread_cond_timedwait(condition, mutex, &end);
}
}
