// Folders and files that only their owner can use, whatever the umask says. Free functions;
// thread-safe.
#ifndef KVSTOW_BASE_PRIVATE_FOLDER_H_
#define KVSTOW_BASE_PRIVATE_FOLDER_H_

#include <sys/types.h>

#include <string>
#include <system_error>

namespace kvstow {

inline constexpr mode_t kPrivateFile = 0600;

// Makes the folder with mode 0700; its name survives power loss. Missing folders above it get the
// mode that the umask leaves. A folder that is there stays as it is.
std::error_code MakePrivateFolder(const std::string& path);

// Takes all rights on the folder, and on everything in it, from everyone but the owner. Leaves
// links alone. Goes on after an error, and returns the first.
std::error_code TightenFolder(const std::string& path);

}  // namespace kvstow

#endif  // KVSTOW_BASE_PRIVATE_FOLDER_H_
