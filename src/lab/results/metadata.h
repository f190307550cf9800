#pragma once
// Where a result comes from: docs/result-schema.json. A result without this cannot be compared.

#include "app/options/options.h"
#include "app/setup/loaded_model.h"
#include "backend/measure.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
// ("device.name", "Xeon") for every value, in order.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> flat_metadata(const Metadata& metadata);
[[nodiscard]] std::string text_of(const Metadata& value);  // a string as it is, the rest as JSON

// SHA-256, in hexadecimal, over each file's name, size and content; of files above 64 MiB only the first and last 32
// MiB.
[[nodiscard]] std::string hash_of(std::span<const MappedSource> files);

// "2026-11-25T13:20:01Z"
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point at);

}  // namespace nibble::app
