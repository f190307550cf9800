#include "base/machine.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace nibble {
namespace {

// The content of a pseudo-file, which has no size; empty if there is none.
std::string read_small(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  std::string text(1 << 16, '\0');
  text.resize(file == nullptr ? 0 : std::fread(text.data(), 1, text.size(), file.get()));
  return text;
}

std::optional<int64_t> number_at(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

int64_t number_behind(std::string_view text, std::string_view name) {
  const size_t at = text.find(name);
  return at == std::string_view::npos ? 0 : number_at(text.substr(at + name.size())).value_or(0);
}

// How long the threads that there are now could have run and had no processor.
double seconds_without_processor() {
  double seconds = 0;
  std::error_code gone;  // a thread, meanwhile
  for (std::filesystem::directory_iterator task("/proc/self/task", gone), end; !gone && task != end;
       task.increment(gone))
    seconds += 1e-9 * static_cast<double>(number_behind(read_small(task->path() / "schedstat"), " "));
  return seconds;
}

// Memory that the control group may still take. Pages of files count as used, but can be reclaimed.
std::optional<int64_t> group_memory() {
  const auto limit = number_at(read_small("/sys/fs/cgroup/memory.max"));  // "max": none
  const auto used = number_at(read_small("/sys/fs/cgroup/memory.current"));
  if (!limit || !used) return std::nullopt;
  const int64_t files = number_behind(read_small("/sys/fs/cgroup/memory.stat"), "\nfile ");
  return std::max<int64_t>(0, *limit - *used + files);
}

}  // namespace

ProcessAccounts process_accounts() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return {.waited_seconds = seconds_without_processor(),
          .major_faults = used.ru_majflt,
          .disk_bytes = int64_t{512} * used.ru_inblock,
          .throttled = number_behind(read_small("/sys/fs/cgroup/cpu.stat"), "\nnr_throttled "),
          .processors = available_processors(),
          .runnable = static_cast<int>(number_behind(read_small("/proc/stat"), "\nprocs_running ")),
          .memory = available_memory()};
}

void allow_most_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

std::optional<int64_t> meminfo_bytes(std::string_view meminfo, std::string_view name) {
  size_t at = 0;
  while (at < meminfo.size()) {
    const size_t end = std::min(meminfo.find('\n', at), meminfo.size());
    const std::string_view line = meminfo.substr(at, end - at);
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ':') {
      const auto kib = number_at(line.substr(name.size() + 1));
      return kib ? std::optional(*kib * 1024) : std::nullopt;
    }
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<int64_t> available_memory() {
  const auto system = meminfo_bytes(read_small("/proc/meminfo"), "MemAvailable");
  const auto group = group_memory();
  if (system && group) return std::min(*system, *group);
  return system ? system : group;
}

int64_t memory_limit() {
  const int64_t system = meminfo_bytes(read_small("/proc/meminfo"), "MemTotal").value_or(0);
  return std::min(system, number_at(read_small("/sys/fs/cgroup/memory.max")).value_or(system));
}

std::optional<int> quota_processors(std::string_view cpu_max) {
  const size_t blank = cpu_max.find(' ');
  const auto quota = number_at(cpu_max.substr(0, blank));
  const auto period = number_at(cpu_max.substr(std::min(blank, cpu_max.size())));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<int>(std::min<int64_t>((*quota - 1) / *period + 1, 1 << 20));
}

int available_processors() {
  cpu_set_t allowed;
  const int count = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                        ? CPU_COUNT(&allowed)
                        : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));  // more than a cpu_set_t holds
  return std::max(1, std::min(count, quota_processors(read_small("/sys/fs/cgroup/cpu.max")).value_or(count)));
}

}  // namespace nibble
