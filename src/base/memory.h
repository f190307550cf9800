#pragma once
// How much memory this process can still have.

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

// What the system could give without swapping, the limit of the process's control group included; none where it does
// not say. Linux: MemAvailable of /proc/meminfo, cgroup v2's memory.max.
[[nodiscard]] std::optional<int64_t> available_memory();

// The pure parts. "MemAvailable:  123 kB" in meminfo's text, in bytes; none when there is no such line.
[[nodiscard]] std::optional<int64_t> meminfo_bytes(std::string_view meminfo, std::string_view name);

}  // namespace nibble
