// The remembered choice of dark or light, before anything is drawn.
const chosen = localStorage.getItem("accel-theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
