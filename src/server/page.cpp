#include "server/page.h"

#include <cstddef>

// NIBBLE_CHAT_PAGE_FILE comes from CMake (cmake/page.cmake), which joins the page. The files are data: the assembler
// copies them into the read-only section.
#define NIBBLE_EMBED(name, file) \
  ".global " name                \
  "_begin\n"                     \
  ".global " name                \
  "_end\n"                       \
  ".hidden " name                \
  "_begin\n"                     \
  ".hidden " name "_end\n" name  \
  "_begin:\n"                    \
  ".incbin \"" file "\"\n" name  \
  "_end:\n"                      \
  ".byte 0\n"
asm(".section .rodata\n" NIBBLE_EMBED("nibble_chat_page", NIBBLE_CHAT_PAGE_FILE)
        NIBBLE_EMBED("nibble_chat_page_gzip", NIBBLE_CHAT_PAGE_FILE ".gz") ".text\n");

namespace nibble::server {

extern const char kPageBegin[] asm("nibble_chat_page_begin");
extern const char kPageEnd[] asm("nibble_chat_page_end");
extern const char kGzipBegin[] asm("nibble_chat_page_gzip_begin");
extern const char kGzipEnd[] asm("nibble_chat_page_gzip_end");

std::string_view chat_page() { return {kPageBegin, static_cast<size_t>(kPageEnd - kPageBegin)}; }
std::string_view gzipped_chat_page() { return {kGzipBegin, static_cast<size_t>(kGzipEnd - kGzipBegin)}; }

}  // namespace nibble::server
