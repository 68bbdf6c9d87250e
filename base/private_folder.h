// Folders and files at rest that are their owner's alone, whatever the umask says. Free functions;
// thread-safe.
#ifndef KVSTOW_BASE_PRIVATE_FOLDER_H_
#define KVSTOW_BASE_PRIVATE_FOLDER_H_

#include <sys/types.h>

#include <string>
#include <system_error>

namespace kvstow {

inline constexpr mode_t kPrivateFile = 0600;

// Makes the folder with mode 0700, so that its name survives power loss; folders above it that are
// missing get what the umask leaves. One that is there stays as it is.
std::error_code MakePrivateFolder(const std::string& path);

// Takes from everyone but the owner what they may do with the folder and with all that is in it.
// Links are left alone. The first error; the rest is done all the same.
std::error_code TightenFolder(const std::string& path);

}  // namespace kvstow

#endif  // KVSTOW_BASE_PRIVATE_FOLDER_H_
