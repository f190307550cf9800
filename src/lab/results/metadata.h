#pragma once
// Where a result comes from: docs/result-schema.json. A result without this cannot be compared. And the page of
// --report, which ends with it.

#include "app/options/options.h"
#include "app/setup/loaded_model.h"
#include "backend/measure.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

using Metadata = nlohmann::ordered_json;

// What a command knows in addition to the program and the machine.
struct ResultOrigin {
  std::string command;  // as it was typed
  const Settings& settings;
  const Variables& environment;  // variables that matter (options.h)
  Metadata workload;
  std::string warm_up;
  double startup_seconds = 0;  // until the first request could run; 0: not started by this process
};

// Most memory that this process has held so far.
[[nodiscard]] int64_t peak_host_bytes();
// Restarts that peak now, if the system can.
void restart_peak();

// A run in this process.
struct ProcessRun {
  const ModelSource& source;
  const ModelOptions& model;  // resolved
  const backend::DevicePeaks& peaks;
};
// With the current date and the peak of memory so far; of a run in this process also with the device as it is now, the
// model, and the device's memory in use.
[[nodiscard]] Metadata metadata_of(const ResultOrigin& origin);
[[nodiscard]] Metadata metadata_of(const ResultOrigin& origin, const ProcessRun& run);
[[nodiscard]] Metadata matrix_json(const backend::DevicePeaks& peaks);
// Memory in use on the cards that the options' backend has, by all programs; 0 without cards.
[[nodiscard]] int64_t used_on_cards(const ModelOptions& model);

// What the metadata must say but does not, as places ("device.driver"); empty: complete. A server's result must say
// what its client can know. Null counts as missing for what must be known.
[[nodiscard]] std::vector<std::string> metadata_gaps(const Metadata& metadata);
// The value at a dotted path such as "device.name"; null if there is none.
[[nodiscard]] Metadata value_at(const Metadata& json, std::string_view path);
[[nodiscard]] std::string text_of(const Metadata& value);  // a string as it is, the rest as JSON

// In what two results' metadata differ.
struct Difference {
  std::string what;  // a path, or a flag: "--threads"
  Metadata a, b;     // null: not told of
};
// Differences at these paths. Where one names another program (metadata.program), which says little, only what both
// tell of.
[[nodiscard]] std::vector<Difference> differing(std::span<const char* const> paths, const Metadata& a,
                                                const Metadata& b);
// Differences of what settings became. One that only one result tells of differs where it is no default.
[[nodiscard]] std::vector<Difference> differing_settings(const Metadata& a, const Metadata& b);

// Writes a page of Markdown. Throws Error(kIo).
void write_report(const std::filesystem::path& path, std::string_view text);
// Before a run that may take hours: throws Error(kIo) unless `path`, the value of `flag`, can be written. An empty one
// is none. Changes no file.
void require_writable(std::string_view flag, const std::filesystem::path& path);
// "## Where this comes from" and a table of all metadata: the end of a page.
[[nodiscard]] std::string metadata_section(const Metadata& metadata);
// Text as a table's cell.
[[nodiscard]] std::string markdown_cell(std::string text);

// SHA-256, in hexadecimal, over each file's name, size and content; of files above 64 MiB only the first and last 32
// MiB.
[[nodiscard]] std::string hash_of(std::span<const MappedSource> files);

// "2026-11-25T13:20:01Z"
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point at);

}  // namespace nibble::app
