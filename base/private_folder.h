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

// Takes all rights on the folder, and on the folders and files in it, from everyone but the owner.
// Leaves links and special files alone. Goes on after a file that fails, ends at a folder that
// cannot be listed, and returns the first error.
std::error_code TightenFolder(const std::string& path);

}  // namespace kvstow

#endif  // KVSTOW_BASE_PRIVATE_FOLDER_H_
