// Before the first paint: the theme that this browser's user has chosen.
(function () {
  "use strict";
  try {
    var theme = localStorage.getItem("reltask.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch (error) { /* storage is switched off: the system's theme counts */ }
})();
