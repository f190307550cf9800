#pragma once
// What this process may have of the machine: memory and processors.

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

// What the system could give without swapping, the limit of the process's control group included; none where it does
// not say. Linux: MemAvailable of /proc/meminfo, cgroup v2's memory.max.
[[nodiscard]] std::optional<int64_t> available_memory();

// How many threads can run at once: the processors that the process may run on (taskset, a cpuset), at most as many as
// its control group has time for (cgroup v2's cpu.max, rounded up). At least 1.
[[nodiscard]] int available_processors();

// The pure parts. "MemAvailable:  123 kB" in meminfo's text, in bytes; none when there is no such line.
[[nodiscard]] std::optional<int64_t> meminfo_bytes(std::string_view meminfo, std::string_view name);
// Processors that cpu.max's text ("QUOTA PERIOD", both in µs) pays for, rounded up; none for "max" or what is no such
// text.
[[nodiscard]] std::optional<int> quota_processors(std::string_view cpu_max);

}  // namespace nibble
