// Threads that share the parts of a call; kernels.cpp includes this.
//
// OpenMP waits for all of its threads at the beginning and at the end of each loop: where another
// process has the core of one of them, every loop takes a slice of time. Here threads take parts of
// the work as they come, so one that does not run has none. Only one that is stopped within a part
// is waited for, asleep, which leaves it the waiting thread's core; and where that takes longer than
// helpers save, fewer of them help for a while.

#include <immintrin.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

namespace {

class Crew {
 public:
  // The number of PyTorch's threads: it is set for the thread that calls.
  static int64_t num_threads() { return std::max(1, omp_get_max_threads()); }

  // Calls `part` with all numbers below `num_parts`, in any order and in several threads.
  template <class Part>
  void share(int64_t num_parts, const Part& part) {
    auto run = [](const void* own, int64_t number) { (*static_cast<const Part*>(own))(number); };
    if (num_parts > 1 && num_parts < UINT32_MAX && num_threads() > 1 &&
        !is_busy.exchange(true, std::memory_order_acquire)) {
      hire(num_threads() - 1);
      if (may_help() > 0) {
        share_job({run, &part, num_parts});
        num_parts = 0;
      }
      is_busy.store(false, std::memory_order_release);
    }
    for (int64_t number = 0; number < num_parts; ++number) part(number);
  }

 private:
  struct Job {
    void (*run)(const void*, int64_t);
    const void* part;
    int64_t num_parts;
  };

  static int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

  static void wait(std::atomic<uint32_t>& word, uint32_t seen) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }

  static void wake(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  void hire(int64_t number) {
    if (number == most_helpers) return;
    for (; num_hired < number; ++num_hired) std::thread(&Crew::help, this, num_hired).detach();
    most_helpers = number;
    allow(number);
  }

  void allow(int64_t number) {
    num_allowed.store(uint32_t(number));
    wake(num_allowed);
  }

  // Returns how many helpers may take parts: after a pause, one more for each window.
  int64_t may_help() {
    int64_t number = num_allowed.load(std::memory_order_relaxed);
    if (number == most_helpers) return number;
    int64_t now = now_ns();
    if (now < resume_ns) return number;
    raised_ns = now;
    resume_ns = now + WINDOW_NS;
    allow(++number);
    return number;
  }

  void share_job(const Job& next) {
    int64_t start = now_ns();
    job = next;
    // Where something else computes between jobs, it has threads of its own.
    spins.store(start - ended_ns < SPIN_NS, std::memory_order_relaxed);
    num_pending.store(uint32_t(job.num_parts), std::memory_order_relaxed);
    uint64_t number = (left.load(std::memory_order_relaxed) >> 32) + 1;
    left.store(number << 32 | uint64_t(job.num_parts));
    num_jobs.fetch_add(1);
    if (num_asleep.load() > 0) wake(num_jobs);
    int64_t number_done = work();
    int64_t end = now_ns();
    // All parts are about as long.
    int64_t fair = (end - start) / std::max(int64_t(1), number_done);
    if (num_pending.load(std::memory_order_acquire) > 0) {
      int64_t patience = end + std::max(LEAST_PATIENCE_NS, 2 * fair);
      while (num_pending.load(std::memory_order_acquire) > 0 && now_ns() < patience) _mm_pause();
      sleep_until_done();
      int64_t over = now_ns();
      lost_ns += std::max(int64_t(0), over - end - fair);
      end = over;
    }
    judge(start, end);
    ended_ns = end;
  }

  void sleep_until_done() {
    is_waiting.store(true);
    while (uint32_t pending = num_pending.load()) wait(num_pending, pending);
    is_waiting.store(false);
  }

  // Lets fewer threads help where what was lost waiting for them is half of the most that the last
  // of them can have saved.
  void judge(int64_t start, int64_t end) {
    busy_ns += end - start;
    int64_t number = num_allowed.load(std::memory_order_relaxed);
    if (2 * (number + 1) * lost_ns > WINDOW_NS) {
      pause_ns = end - raised_ns < pause_ns ? std::min(2 * pause_ns, MOST_PAUSE_NS) : WINDOW_NS;
      resume_ns = end + pause_ns;
      num_allowed.store(uint32_t(number - 1));
      busy_ns = lost_ns = 0;
    } else if (busy_ns > WINDOW_NS) {
      busy_ns /= 2;
      lost_ns /= 2;
    }
  }

  // Does parts until none is left; returns how many.
  int64_t work() {
    int64_t number_done = 0;
    uint64_t seen = left.load();
    while (uint32_t number_left = uint32_t(seen)) {
      uint32_t threads = num_allowed.load(std::memory_order_relaxed) + 1;
      uint32_t number = std::max(uint32_t(1), number_left / (2 * threads));
      if (!left.compare_exchange_weak(seen, seen - number)) continue;
      // The job stays as it is while a part of it is not done.
      Job own = job;
      int64_t first = own.num_parts - number_left;
      for (int64_t i = first; i < first + number; ++i) own.run(own.part, i);
      number_done += number;
      if (num_pending.fetch_sub(number) == number && is_waiting.load()) wake(num_pending);
      seen = left.load();
    }
    return number_done;
  }

  void help(int64_t number) {
    for (;;) {
      uint32_t allowed = num_allowed.load();
      if (number >= allowed) {
        wait(num_allowed, allowed);
      } else {
        work();
        await_job();
      }
    }
  }

  void await_job() {
    uint32_t seen = num_jobs.load();
    int64_t end = now_ns() + (spins.load(std::memory_order_relaxed) ? SPIN_NS : 0);
    while (uint32_t(left.load(std::memory_order_relaxed)) == 0) {
      if (now_ns() < end) {
        for (int i = 0; i < 8; ++i) _mm_pause();
        continue;
      }
      num_asleep.fetch_add(1);
      wait(num_jobs, seen);
      num_asleep.fetch_sub(1);
      return;
    }
  }

  static constexpr int64_t SPIN_NS = 100'000, LEAST_PATIENCE_NS = 20'000;
  static constexpr int64_t WINDOW_NS = 50'000'000, MOST_PAUSE_NS = 3'200'000'000;

  // Of the thread that shares, of which there is one at a time.
  std::atomic<bool> is_busy{false};
  int64_t num_hired = 0, most_helpers = 0;
  int64_t ended_ns = 0, busy_ns = 0, lost_ns = 0, raised_ns = 0, resume_ns = 0, pause_ns = WINDOW_NS;

  Job job = {};
  std::atomic<bool> spins{false};  // Helpers, between jobs.
  // The job's number in the high half, and how many of its parts nobody has taken.
  alignas(64) std::atomic<uint64_t> left{0};
  alignas(64) std::atomic<uint32_t> num_pending{0};  // Parts that are not done.
  std::atomic<bool> is_waiting{false};
  alignas(64) std::atomic<uint32_t> num_jobs{0};
  std::atomic<uint32_t> num_asleep{0};
  std::atomic<uint32_t> num_allowed{0};  // Helpers with a lower number may take parts.
};

// Never ends, as its threads do not; a process that is forked has none of them.
Crew* crew = [] {
  pthread_atfork(nullptr, nullptr, [] { crew = new Crew; });
  return new Crew;
}();

}  // namespace
