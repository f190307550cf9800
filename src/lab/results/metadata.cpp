#include "lab/results/metadata.h"

#include "app/options/build_facts.h"
#include "app/options/settings.h"
#include "app/setup/memory_budget.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/read_json.h"
#include "base/time_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include <sys/resource.h>
#include <sys/utsname.h>

namespace nibble::app {
namespace {

// A small file of the system; empty if there is none.
std::string system_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// "model name      : Intel(R) Xeon(R)" of the first processor.
std::string processor_name() {
  const std::string info = system_file("/proc/cpuinfo");
  const size_t line = info.find("model name");
  const size_t colon = line == std::string::npos ? line : info.find(": ", line);
  return colon == std::string::npos ? "unknown" : first_line(info.substr(colon + 2));
}

// The clock of the fastest processor now; null if the system does not tell (Arm).
Metadata processor_mhz() {
  constexpr std::string_view kField = "cpu MHz";
  const std::string info = system_file("/proc/cpuinfo");
  double highest = 0;
  for (size_t line = info.find(kField); line != std::string::npos; line = info.find(kField, line + 1)) {
    const size_t colon = info.find(": ", line);
    if (colon != std::string::npos) highest = std::max(highest, std::strtod(info.c_str() + colon + 2, nullptr));
  }
  return highest > 0 ? Metadata(std::llround(highest)) : Metadata();
}

// From the driver's own file, which a container may not show, or from the module's.
std::string driver_version() {
  const std::string told = first_line(system_file("/proc/driver/nvidia/version"));
  return told.empty() ? first_line(system_file("/sys/module/nvidia/version")) : told;
}

Metadata host() {
  utsname system{};
  uname(&system);
  const std::string governor = first_line(system_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
  return {{"cpu", processor_name()},
          {"processors", available_processors()},
          {"memory_bytes", meminfo_bytes(system_file("/proc/meminfo"), "MemTotal").value_or(0)},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"cpu_governor", governor.empty() ? "unknown" : governor},
          {"cpu_mhz", processor_mhz()}};
}

Metadata build() {
  const BuildFacts facts = build_facts();
  Metadata json = {{"version", NIBBLE_VERSION}, {"commit", build_facts().commit},
                   {"type", facts.type},        {"compiler", facts.compiler},
                   {"flags", facts.flags},      {"sanitizers", facts.sanitizers},
                   {"cuda", nullptr},           {"cuda_architectures", nullptr}};
  if (!facts.cuda.empty()) {
    json["cuda"] = facts.cuda;
    json["cuda_architectures"] = facts.cuda_architectures;
  }
  return json;
}

Metadata device_of(const backend::DevicePeaks& peaks, const backend::RunConfig& run) {
  const bool card = run.backend == BackendKind::kCuda;
  Metadata device = {{"name", peaks.device},
                     {"backend", name_of(run.backend)},
                     {"kernels", run.backend == BackendKind::kCpu ? backend::describe_cpu(run) : ""},
                     {"driver", nullptr},
                     {"read_bytes_per_s", peaks.read_bytes_per_s},
                     {"matrix", matrix_json(peaks)},
                     {"clock_mhz", nullptr},
                     {"watts", nullptr},
                     {"power_limit_watts", nullptr},
                     {"celsius", nullptr}};
  if (!card) return device;
  device["driver"] = driver_version();
  if (const backend::ReadClock read = backend::cuda_clock(0)) {
    if (const auto now = read()) {
      device["clock_mhz"] = now->mhz;
      device["watts"] = now->watts;
      if (now->limit_watts > 0) device["power_limit_watts"] = now->limit_watts;
      device["celsius"] = now->celsius;
    }
  }
  return device;
}

// A model is identified by its files, random weights by their seed.
Metadata model_of(const ModelSource& source, const ModelOptions& options) {
  Metadata model = {{"name", options.name}, {"sha256", nullptr}, {"dummy_seed", nullptr}};
  const std::vector<MappedSource> files = source.mapped_files();
  if (files.empty())
    model["dummy_seed"] = options.dummy_seed;
  else
    model["sha256"] = hash_of(files);
  return model;
}

// What every result must say, and what a run in its own process must say. Some of these may be null.
constexpr std::array kOfAll = {
    "date",        "build.commit", "host.cpu",        "host.cpu_governor", "device.name",           "settings",
    "environment", "warm_up",      "startup_seconds", "workload",          "peak_memory_bytes.host"};
constexpr std::array kOfProcesses = {"device.backend", "device.kernels"};
constexpr std::array kPerhapsNull = {"build.cuda",       "device.driver",
                                     "device.clock_mhz", "device.power_limit_watts",
                                     "host.cpu_mhz",     "peak_memory_bytes.device"};
constexpr std::array kOfCards = {"build.cuda", "device.driver", "device.clock_mhz", "peak_memory_bytes.device"};

// A line for every value, by its path.
void list_values(const Metadata& json, const std::string& path, std::string& out) {
  if (!json.is_object()) {
    out += fmt::format("| {} | {} |\n", markdown_cell(path), markdown_cell(text_of(json)));
    return;
  }
  for (const auto& [name, value] : json.items()) list_values(value, path.empty() ? name : path + "." + name, out);
}

// "device.name" as a pointer.
Metadata::json_pointer pointer_to(std::string_view path) {
  std::string text = path.empty() ? "" : fmt::format("/{}", path);
  std::ranges::replace(text, '.', '/');
  return Metadata::json_pointer(text);
}

bool is_there(const Metadata& json, std::string_view path) { return json.contains(pointer_to(path)); }

bool is_said(const Metadata& json, std::string_view path) {
  const Metadata value = value_at(json, path);
  return !value.is_null() && value != "";
}

}  // namespace

int64_t peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void restart_peak() {
  constexpr const char* kResetPeak = "5";  // proc(5), clear_refs
  std::ofstream("/proc/self/clear_refs") << kResetPeak;
}

Metadata value_at(const Metadata& json, std::string_view path) {
  const Metadata::json_pointer at = pointer_to(path);
  return json.contains(at) ? json[at] : Metadata();
}

std::string text_of(const Metadata& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

void write_report(const std::filesystem::path& path, std::string_view text) {
  if (!(std::ofstream(path, std::ios::binary) << text << std::flush))
    throw Error(Code::kIo, "--report {}: it cannot be written", path.string());
}

void require_writable(std::string_view flag, const std::filesystem::path& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(path, ignored);
  if (!std::ofstream(path, std::ios::app)) throw Error(Code::kIo, "{} {}: it cannot be written", flag, path.string());
  if (!was_there) std::filesystem::remove(path, ignored);
}

std::string metadata_section(const Metadata& metadata) {
  std::string out = "\n## Where this comes from\n\n| | |\n| :-- | :-- |\n";
  list_values(metadata, "", out);
  return out;
}

std::string markdown_cell(std::string text) {
  for (char& c : text)
    if (c == '|' || c == '\n') c = c == '|' ? '/' : ' ';
  return text;
}

std::vector<Difference> differing(std::span<const char* const> paths, const Metadata& a, const Metadata& b) {
  const bool foreign = !value_at(a, "program").is_null() || !value_at(b, "program").is_null();
  std::vector<Difference> all;
  for (const char* path : paths) {
    const Metadata of_a = value_at(a, path), of_b = value_at(b, path);
    if (of_a != of_b && !(foreign && (of_a.is_null() || of_b.is_null()))) all.push_back({path, of_a, of_b});
  }
  return all;
}

std::vector<Difference> differing_settings(const Metadata& a, const Metadata& b) {
  const Metadata settings[] = {value_at(a, "settings"), value_at(b, "settings")};
  std::set<std::string> flags;
  for (const Metadata& side : settings)
    for (const auto& [flag, setting] : side.items()) flags.insert(flag);
  std::vector<Difference> all;
  for (const std::string& flag : flags) {
    Metadata values[2];
    bool defaults = true;
    for (size_t side = 0; side < 2; ++side) {
      if (!settings[side].contains(flag)) continue;
      const Metadata& setting = settings[side][flag];
      const Metadata resolved = value_at(setting, "resolved");
      values[side] = resolved.is_null() ? value_at(setting, "value") : resolved;
      defaults = defaults && value_at(setting, "origin") == "default";
    }
    const bool both = !values[0].is_null() && !values[1].is_null();
    if (both ? values[0] != values[1] : !defaults) all.push_back({"--" + flag, values[0], values[1]});
  }
  return all;
}

std::vector<std::string> metadata_gaps(const Metadata& metadata) {
  std::vector<std::string> gaps;
  const auto want = [&](const auto& paths, const auto& holds) {
    for (const char* path : paths)
      if (!holds(metadata, path) && std::ranges::find(gaps, path) == gaps.end()) gaps.emplace_back(path);
  };
  want(kOfAll, is_said);
  if (is_there(metadata, "server")) return gaps;  // the client does not see the server's driver, clock and files
  want(kOfProcesses, is_there);
  want(kPerhapsNull, is_there);
  if (value_at(metadata, "device.backend") == name_of(BackendKind::kCuda)) want(kOfCards, is_said);
  if (!is_said(metadata, "model.sha256") && !is_said(metadata, "model.dummy_seed")) gaps.emplace_back("model.sha256");
  return gaps;
}

std::string utc_text(std::chrono::system_clock::time_point at) {
  return utc_time(std::chrono::system_clock::to_time_t(at));
}

Metadata metadata_of(const ResultOrigin& origin) {
  Metadata environment = Metadata::object();
  for (const auto& [name, value] : origin.environment) environment[name] = value;
  return {{"date", utc_text(std::chrono::system_clock::now())},
          {"command", origin.command},
          {"build", build()},
          {"host", host()},
          {"device", nullptr},
          {"model", nullptr},
          {"settings", read_ordered_json(settings_text(origin.settings, true))},
          {"environment", std::move(environment)},
          {"workload", origin.workload},
          {"warm_up", origin.warm_up},
          {"startup_seconds", origin.startup_seconds},
          {"peak_memory_bytes", {{"host", peak_host_bytes()}, {"device", nullptr}}}};
}

int64_t used_on_cards(const ModelOptions& model) {
  int64_t used = 0;
  if (model.run.backend != BackendKind::kCuda) return used;
  for (const int card : cards_of(model)) {
    const backend::CudaMemory memory = backend::cuda_memory(card);
    used += memory.total_bytes - memory.free_bytes;
  }
  return used;
}

Metadata metadata_of(const ResultOrigin& origin, const ProcessRun& run) {
  Metadata metadata = metadata_of(origin);
  metadata["device"] = device_of(run.peaks, run.model.run);
  metadata["model"] = model_of(run.source, run.model);
  if (run.model.run.backend == BackendKind::kCuda) metadata["peak_memory_bytes"]["device"] = used_on_cards(run.model);
  return metadata;
}

Metadata matrix_json(const backend::DevicePeaks& peaks) {
  Metadata matrix = Metadata::array();
  for (const backend::MatrixPeak& peak : peaks.matrix)
    matrix.push_back({{"type", peak.type}, {"exact", peak.exact16}, {"flops_per_s", peak.flops_per_s}});
  return matrix;
}

std::string hash_of(std::span<const MappedSource> files) {
  constexpr size_t kWhole = size_t{64} << 20;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const auto use = [&](const void* data, size_t size) {
    check(EVP_DigestUpdate(context.get(), data, size) == 1, "SHA-256 takes all bytes");
  };
  check(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1, "SHA-256 is there");
  for (const MappedSource& file : files) {
    const std::string head = fmt::format("{}\n{}\n", file.path.filename().string(), file.bytes.size());
    use(head.data(), head.size());
    if (file.bytes.size() <= kWhole) {
      use(file.bytes.data(), file.bytes.size());
    } else {
      use(file.bytes.data(), kWhole / 2);
      use(file.bytes.last(kWhole / 2).data(), kWhole / 2);
    }
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1, "SHA-256 ends");
  return fmt::format("{:02x}", fmt::join(std::span(digest).first(size), ""));
}

}  // namespace nibble::app
