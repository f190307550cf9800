#pragma once
// Keeps responses in memory for previous_response_id and GET; the oldest are dropped first. Any thread.

#include "server/schema.h"

#include <algorithm>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace nibble::server {

class ResponseStore {
 public:
  ResponseStore(size_t most_responses, size_t most_bytes) : most_(most_responses), most_bytes_(most_bytes) {}

  struct Entry {
    Json response, input;  // input: as it was sent
    StoredTurn turn;       // the whole conversation up to and with this response
  };
  // One that is larger than everything the store may hold is not kept.
  void put(const std::string& id, Entry entry) {
    const size_t bytes = bytes_of(entry);
    if (bytes > most_bytes_) return;
    const std::lock_guard lock(mutex_);
    records_.push_back({id, std::move(entry), bytes});
    bytes_ += bytes;
    while (records_.size() > most_ || bytes_ > most_bytes_) drop(records_.begin());
  }
  [[nodiscard]] std::optional<Entry> get(const std::string& id) const {  // a copy
    const std::lock_guard lock(mutex_);
    const auto it = std::ranges::find(records_, id, &Record::id);
    return it == records_.end() ? std::nullopt : std::optional(it->entry);
  }
  bool remove(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto it = std::ranges::find(records_, id, &Record::id);
    if (it == records_.end()) return false;
    drop(it);
    return true;
  }

 private:
  struct Record {
    std::string id;
    Entry entry;
    size_t bytes;
  };

  // Approximate, which is enough for a limit.
  static size_t bytes_of(const Entry& entry) {
    size_t bytes = 2 * (to_text(entry.response).size() + to_text(entry.input).size()) + 1024;
    for (const std::string& text : entry.turn.instructions) bytes += text.size();
    for (const text::Message& message : entry.turn.history) {
      bytes += sizeof message;
      for (const text::Content& content : message.content) {
        if (const auto* plain = std::get_if<std::string>(&content)) bytes += plain->size();
        if (const auto* developer = std::get_if<text::DeveloperOptions>(&content))
          bytes += developer->instructions.value_or("").size();
      }
    }
    for (const Tool& tool : entry.turn.loaded)  // which the history tells, too
      bytes += 2 * (tool.spec.description.size() + to_text(tool.spec.parameters.value_or(Json())).size()) +
               tool.grammar.size() + sizeof tool;
    return bytes;
  }
  void drop(std::list<Record>::const_iterator it) {
    bytes_ -= it->bytes;
    records_.erase(it);
  }

  const size_t most_, most_bytes_;
  mutable std::mutex mutex_;   // guards all below
  std::list<Record> records_;  // oldest first; few enough to look through
  size_t bytes_ = 0;
};

}  // namespace nibble::server
