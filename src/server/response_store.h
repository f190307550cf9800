#pragma once
// Keeps responses in memory for previous_response_id and GET; the oldest are dropped first. Any thread.

#include "server/schema.h"

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace nibble::server {

class ResponseStore {
 public:
  ResponseStore(size_t most_responses, size_t most_bytes) : most_(most_responses), most_bytes_(most_bytes) {}

  struct Entry {
    Json response;
    StoredTurn turn;  // the whole conversation up to and with this response
  };
  // One that is larger than everything the store may hold is not kept.
  void put(const std::string& id, Entry entry) {
    const size_t bytes = bytes_of(entry);
    if (bytes > most_bytes_) return;
    const std::lock_guard lock(mutex_);
    by_age_.push_back(id);
    records_.insert_or_assign(id, Record{std::move(entry), bytes, std::prev(by_age_.end())});
    bytes_ += bytes;
    while (records_.size() > most_ || bytes_ > most_bytes_) drop(records_.find(by_age_.front()));
  }
  [[nodiscard]] std::optional<Entry> get(const std::string& id) const {  // a copy
    const std::lock_guard lock(mutex_);
    const auto it = records_.find(id);
    return it == records_.end() ? std::nullopt : std::optional(it->second.entry);
  }
  bool remove(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto it = records_.find(id);
    if (it == records_.end()) return false;
    drop(it);
    return true;
  }

 private:
  struct Record {
    Entry entry;
    size_t bytes;
    std::list<std::string>::iterator age;
  };
  using Records = std::map<std::string, Record, std::less<>>;

  // Approximate, which is enough for a limit.
  static size_t bytes_of(const Entry& entry) {
    size_t bytes = 2 * to_text(entry.response).size() + 1024;
    for (const std::string& text : entry.turn.instructions) bytes += text.size();
    for (const text::Message& message : entry.turn.history) {
      bytes += sizeof message;
      for (const text::Content& content : message.content) {
        if (const auto* plain = std::get_if<std::string>(&content)) bytes += plain->size();
        if (const auto* developer = std::get_if<text::DeveloperOptions>(&content))
          bytes += developer->instructions.value_or("").size();
      }
    }
    return bytes;
  }
  void drop(Records::iterator it) {
    bytes_ -= it->second.bytes;
    by_age_.erase(it->second.age);
    records_.erase(it);
  }

  const size_t most_, most_bytes_;
  mutable std::mutex mutex_;  // guards all below
  Records records_;
  std::list<std::string> by_age_;  // oldest first
  size_t bytes_ = 0;
};

}  // namespace nibble::server
