// Pieces of HTML for the status page: escaped text, tables, and numbers as people read them.
//
// Values and free functions; thread-safe. Text that comes from outside (names of spaces, models,
// settings) becomes HTML through EscapeHtml or as the text of a Cell, and in no other way.
#ifndef KVSTOW_SERVICE_OPS_HTML_H_
#define KVSTOW_SERVICE_OPS_HTML_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvstow {

// Returns `text` with &, <, > and quotes escaped.
std::string EscapeHtml(absl::string_view text);

// A cell of a table: text, which it escapes, or HTML.
class Cell {
 public:
  Cell(const char* text) : Cell(absl::string_view(text)) {}
  Cell(const std::string& text) : Cell(absl::string_view(text)) {}
  Cell(absl::string_view text) : html_(EscapeHtml(text)), text_(html_) {}
  static Cell Html(std::string html);

  const std::string& html() const { return html_; }
  const std::string& text() const { return text_; }  // escaped; "" where it is HTML

 private:
  std::string html_, text_;
};

// A table. The cells of a column have its classes (page.css): "n" numbers, "name" names, which are
// cut short and told in full by a title, "bar" a bar, "wide" left out on a telephone.
class HtmlTable {
 public:
  struct Column {
    const char* title;
    const char* classes = "";
  };
  explicit HtmlTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Add(const std::vector<Cell>& row);  // a cell for each column
  bool empty() const { return rows_.empty(); }
  std::string Finish() const;

 private:
  const std::vector<Column> columns_;
  std::string rows_;
};

std::string CountText(uint64_t count);                  // "1,234,567"
std::string RateText(double bytes, double seconds);     // "64.0 MiB/s"
std::string ShareText(double part, double of);          // "63.2 %", "-" of nothing
std::string RatioText(uint64_t raw, uint64_t encoded);  // "3.82x", "-" without bytes
std::string MillisText(double ms);                      // "0.42 ms", "1.21 s", "-" for 0
std::string AgeText(uint64_t ms);                       // "12 s", "3 min", "2 h 5 min", "4 d 1 h"

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_HTML_H_
