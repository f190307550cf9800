#include "server/turn_reader.h"

#include <string_view>
#include <utility>

namespace nibble::server {

namespace {
using What = TurnEvent::What;
}  // namespace

TurnReader::TurnReader(const text::Tokenizer& tokenizer, const text::HarmonyIds& ids, const TurnOptions& options)
    : tokenizer_(tokenizer),
      ids_(ids),
      options_(options),
      parser_(text::Role::kAssistant),
      stops_(options.stop,
             options.include_stop ? text::StopStrings::Match::kIncluded : text::StopStrings::Match::kExcluded) {}

std::vector<TurnEvent> TurnReader::push(int32_t token) {
  if (ended_) return {};
  events_.clear();
  ++tokens_;
  if (const auto special = ids_.special_of(token))
    take(parser_.push(*special));
  else if (tokenizer_.contains(token) && !tokenizer_.is_special(token))
    take(parser_.push(tokenizer_.token_bytes(token)));
  if (open_ == ItemKind::kReasoning) ++reasoning_tokens_;
  return std::move(events_);
}

std::vector<TurnEvent> TurnReader::finish() {
  if (ended_) return {};
  events_.clear();
  take(parser_.finish());
  ended_ = true;
  return std::move(events_);
}

void TurnReader::take(const std::vector<text::Event>& events) {
  for (const text::Event& event : events) {
    if (ended_) return;
    std::visit([this](const auto& e) { on(e); }, event);
  }
}

ItemKind TurnReader::kind_of(const text::MessageHeader& header) const {
  const bool analysis = header.channel == text::kAnalysisChannel;
  if (header.role != text::Role::kAssistant) return ItemKind::kReasoning;
  if (header.recipient && options_.calls) return ItemKind::kCall;
  return analysis ? ItemKind::kReasoning : ItemKind::kContent;
}

void TurnReader::on(const text::MessageStarted& started) {
  const text::MessageHeader& h = started.header;
  open_ = kind_of(h);
  begun_ = false;
  if (open_ == ItemKind::kCall && calls_ == 1 && !options_.parallel_calls) {
    open_.reset();
    ended_ = true;
    return;
  }
  messages_.push_back({.role = h.role,
                       .name = h.name,
                       .recipient = h.recipient,
                       .channel = h.channel,
                       .content_type = h.content_type,
                       .content = {std::string()}});
  if (open_ != ItemKind::kCall) return;
  ++calls_;
  begun_ = true;
  std::string_view name = *h.recipient;
  if (constexpr std::string_view kFunctions = "functions."; name.starts_with(kFunctions))
    name.remove_prefix(kFunctions.size());
  events_.push_back({What::kBegin, ItemKind::kCall, std::string(name)});
}

void TurnReader::on(const text::TextDelta& delta) {
  if (open_ != ItemKind::kContent || tokens_ <= options_.min_tokens) return emit_text(delta.text);
  text::StopStrings::Step step = stops_.push(delta.text);
  emit_text(std::move(step.text));
  if (!step.stop_idx) return;
  if (begun_) events_.push_back({What::kEnd, ItemKind::kContent, {}});
  ended_ = true;
  stop_ = step.stop_idx;
}

void TurnReader::on(const text::MessageEnded&) {
  if (open_ == ItemKind::kContent) emit_text(stops_.finish());
  if (begun_) events_.push_back({What::kEnd, *open_, {}});
  open_.reset();
}

void TurnReader::emit_text(std::string text) {
  if (text.empty()) return;
  if (!begun_) events_.push_back({What::kBegin, *open_, {}});
  begun_ = true;
  std::get<std::string>(messages_.back().content[0]) += text;
  events_.push_back({What::kText, *open_, std::move(text)});
}

}  // namespace nibble::server
