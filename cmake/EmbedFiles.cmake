# Run by the build: writes the C++ source that holds the files of the status page (service/ops/page_files.h).
#   cmake -D OUTPUT=page_files.cc -D FOLDER=service/ops/page -D "FILES=page.html|page.css" -P EmbedFiles.cmake
set(types_css "text/css; charset=utf-8")
set(types_html "text/html; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(types_svg "image/svg+xml")

set(rows "")
string(REPLACE "|" ";" FILES "${FILES}")
foreach(name ${FILES})
  file(READ "${FOLDER}/${name}" text)
  get_filename_component(extension "${name}" LAST_EXT)
  string(SUBSTRING "${extension}" 1 -1 extension)
  string(APPEND rows "    {\"/${name}\", \"${types_${extension}}\",\n     R\"kvstow(${text})kvstow\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedFiles.cmake.
#include \"service/ops/page_files.h\"

namespace kvstow {
namespace {
constexpr EmbeddedFile kFiles[] = {
${rows}};
}  // namespace

const EmbeddedFile* PageFile(absl::string_view path) {
  for (const EmbeddedFile& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace kvstow
")
