# Before a package is made: settings belong in /etc, and below the prefix /usr they would be in /usr/etc.
file(GLOB settings ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/usr/etc)
foreach(folder ${settings})
  cmake_path(GET folder PARENT_PATH usr)
  cmake_path(GET usr PARENT_PATH root)
  file(RENAME ${folder} ${root}/etc)
endforeach()
