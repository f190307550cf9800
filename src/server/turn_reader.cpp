#include "server/turn_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace nibble::server {

TurnReader::TurnReader(const text::Tokenizer& tokenizer, const text::HarmonyIds& ids, const TurnOptions& options)
    : tokenizer_(tokenizer),
      ids_(ids),
      options_(options),
      parser_(text::Role::kAssistant),
      stops_(options.stop,
             options.include_stop ? text::StopStrings::Match::kIncluded : text::StopStrings::Match::kExcluded) {
  if (!options_.prefilled) return;
  take(parser_.push(text::Special::kChannel));
  take(parser_.push(text::kFinalChannel));
  take(parser_.push(text::Special::kMessage));
}

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
  if (header.role != text::Role::kAssistant) return ItemKind::kReasoning;
  if (header.recipient && options_.calls) return ItemKind::kCall;
  return header.channel == text::kAnalysisChannel ? ItemKind::kReasoning : ItemKind::kContent;
}

// The tool that the recipient names, or the nearest reading of it.
Callee TurnReader::called(std::string_view recipient) {
  const auto find = [this](const auto& is) -> const Callee* {
    const auto it = std::ranges::find_if(options_.tools, is);
    const bool alone = it != options_.tools.end() && std::none_of(it + 1, options_.tools.end(), is);
    return alone ? &*it : nullptr;
  };
  const auto spelt = [&](std::string_view between) {
    return find([&](const Callee& tool) { return tool.space + std::string(between) + tool.name == recipient; });
  };
  if (const Callee* tool = spelt(".")) return *tool;
  const std::string functions = std::string(text::kFunctionsSpace) + '.';
  if (recipient.starts_with(functions)) recipient.remove_prefix(functions.size());
  const Callee* tool = spelt(".");
  if (tool == nullptr) tool = spelt("__");
  if (tool == nullptr) tool = find([&](const Callee& one) { return one.name == recipient; });
  if (tool == nullptr) return {.name = std::string(recipient)};
  ++names_repaired_;
  return *tool;
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
  messages_.push_back(h.message());
  messages_.back().content = {std::string()};
  if (open_ != ItemKind::kCall) return;
  ++calls_;
  begun_ = true;
  events_.push_back({.what = TurnEvent::What::kBegin, .kind = ItemKind::kCall, .callee = called(*h.recipient)});
  messages_.back().recipient = events_.back().callee.recipient();
  if (events_.back().callee.kind != ToolKind::kCustom) return;
  if (h.content_type && h.content_type->name == "json") wrapped_.emplace();
  messages_.back().content_type.reset();  // the text is kept as the client gets it
}

void TurnReader::on(const text::TextDelta& delta) {
  if (wrapped_) return emit_text(wrapped_->push(delta.text));
  if (open_ != ItemKind::kContent || tokens_ <= options_.min_tokens) return emit_text(delta.text);
  text::StopStrings::Step step = stops_.push(delta.text);
  emit_text(std::move(step.text));
  if (!step.stop_idx) return;
  if (begun_) events_.push_back({.what = TurnEvent::What::kEnd, .kind = ItemKind::kContent});
  ended_ = true;
  stop_ = step.stop_idx;
}

void TurnReader::on(const text::MessageEnded&) {
  if (open_ == ItemKind::kContent) emit_text(stops_.finish());
  if (wrapped_) emit_text(wrapped_->finish());
  wrapped_.reset();
  if (begun_) events_.push_back({.what = TurnEvent::What::kEnd, .kind = *open_});
  open_.reset();
}

void TurnReader::emit_text(std::string text) {
  if (text.empty()) return;
  if (!begun_) {
    const bool preamble = messages_.back().channel == text::kCommentaryChannel;
    events_.push_back({.what = TurnEvent::What::kBegin, .kind = *open_, .preamble = preamble});
  }
  begun_ = true;
  std::get<std::string>(messages_.back().content[0]) += text;
  events_.push_back({.what = TurnEvent::What::kText, .kind = *open_, .text = std::move(text)});
}

}  // namespace nibble::server
