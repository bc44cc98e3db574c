{{- define "muster.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
