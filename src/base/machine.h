#pragma once
// How much memory and how many processors this process may use.

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

// Memory that the system could give without swapping, within the limit of the process's control group; none if it does
// not say. Linux: MemAvailable of /proc/meminfo, cgroup v2's memory.max.
[[nodiscard]] std::optional<int64_t> available_memory();

// All of the system's memory, within the limit of the process's control group; 0 if it does not say.
[[nodiscard]] int64_t memory_limit();

// How many threads can run at once: the processors on which the process may run (taskset, a cpuset), limited by the
// time that its control group has (cgroup v2's cpu.max, rounded up). At least 1.
[[nodiscard]] int available_processors();

// What the kernel has counted for this process so far, and what is left to it now. What it does not say is 0.
struct ProcessAccounts {
  double waited_seconds = 0;                 // of its threads, which could have run and had no processor
  int64_t major_faults = 0, disk_bytes = 0;  // pages that came from a disk when they were used; all that came from one
  int64_t throttled = 0;                     // periods in which its control group had used up its time (cpu.max)
  int processors = 1;                        // available_processors()
  int runnable = 0;                          // tasks of the whole system at this moment, with those that run
  std::optional<int64_t> memory{};           // available_memory()
};
[[nodiscard]] ProcessAccounts process_accounts();

// Lets this process open as many files and connections as the system allows it.
void allow_most_files();

// The pure parts. "MemAvailable:  123 kB" in meminfo's text, in bytes; none when there is no such line.
[[nodiscard]] std::optional<int64_t> meminfo_bytes(std::string_view meminfo, std::string_view name);
// Processors that cpu.max's text ("QUOTA PERIOD", both in µs) allows, rounded up; none for "max" and for an invalid
// text.
[[nodiscard]] std::optional<int> quota_processors(std::string_view cpu_max);

}  // namespace nibble
